"""Refusals of tables that do not fit together."""

from collections.abc import Sequence
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.config.notes import notes_on
from shoal.errors import InvalidArgument
from tests.support.configs import run_config

NEEDED: dict[str, dict[str, Any]] = {
    "run": {"deterministic": True, "num_threads": 1},
    "grpo": {"max_staleness": 0},
    "generator": {"dtype": "float32"},
    "learner": {"compute_dtype": "float32"},
}


def deterministic(*, environments: Sequence[dict[str, Any]] = (), **sections: dict[str, Any]) -> RunConfig:
    merged = {name: NEEDED.get(name, {}) | sections.get(name, {}) for name in NEEDED.keys() | sections.keys()}
    return run_config(**merged, environments=list(environments))


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"run": {"num_threads": None}}, r"run\.deterministic needs run\.num_threads, for example 1"),
        ({"grpo": {"max_staleness": 1}}, r"run\.deterministic needs grpo\.max_staleness 0 \(it is 1\)"),
        ({"generator": {"dtype": "auto"}}, r'needs generator\.dtype "float32" \(it is "auto"\)'),
        ({"learner": {"compute_dtype": "bfloat16"}}, r'needs learner\.compute_dtype "float32" \(it is "bfloat16"\)'),
        ({"weights": {"dtype": "bfloat16"}}, r'needs weights\.dtype "auto" or "float32" \(it is "bfloat16"\)'),
        ({"weights": {"backend": "nccl"}}, r'needs weights\.backend "auto" or "gloo" \(it is "nccl"\)'),
        ({"generator": {"tensor_parallel_size": 2}}, r"needs generator\.tensor_parallel_size 1 \(it is 2\)"),
        ({"generator": {"lora": "adapter"}, "learner": {"lora": {"rank": 8}}}, r'needs generator\.lora "merged"'),
        ({"learner": {"lora": {"rank": 8, "quantization": "nf4"}}}, r'needs learner\.lora\.quantization "none"'),
        ({"generator": {"sleep_while_training": True}}, r"needs generator\.sleep_while_training false"),
    ],
)
def test_what_a_deterministic_run_cannot_keep_is_refused_with_what_it_needs(
    sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        deterministic(**sections)


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    with pytest.raises(InvalidArgument) as refused:
        run_config(run={"deterministic": True}, grpo={"max_staleness": 2})
    needed = ("run.num_threads", "grpo.max_staleness 0", "generator.dtype", "learner.compute_dtype")
    assert [name for name in needed if name not in refused.value.message] == [], refused.value.message


def test_episodes_need_environments_with_room_for_all_of_them() -> None:
    played: dict[str, Any] = {"data": {"sources": [{"path": "unused.jsonl", "environment": "calculator"}]}}
    played |= {"grpo": {"max_staleness": 0, "group_size": 7, "groups_per_step": 8}}
    deterministic(**played, environments=[{"name": "calculator", "max_episodes": 64}])
    with pytest.raises(InvalidArgument, match=r"needs environments\.max_episodes of at least 64"):
        deterministic(**played, environments=[{"name": "calculator", "max_episodes": 63}])


def test_verifiers_that_shoal_does_not_determine_are_noted() -> None:
    assert notes_on(deterministic()) == [], "it is accepted"
    judge = {"base_url": "http://127.0.0.1:8000/v1", "model": "judge"}
    (note,) = notes_on(deterministic(reward={"judge": judge, "custom": {"mine": {"file": "/home/me/mine.py"}}}))
    assert "reward.judge" in note and "reward.custom" in note


def with_adapters(lora: dict[str, Any], **sections: dict[str, Any]) -> RunConfig:
    generator = {"lora": "adapter"} | sections.pop("generator", {})
    return run_config(learner={"lora": lora}, generator=generator, **sections)


def test_adapters_of_any_rank_that_vllm_takes_are_accepted() -> None:
    for rank in (1, 16, 300, 512):
        assert with_adapters({"rank": rank}).generator.lora == "adapter"


@pytest.mark.parametrize(
    ("lora", "sections", "complaint"),
    [
        ({}, {}, r'generator\.lora "adapter" needs learner\.lora\.rank above 0'),
        ({"rank": 513}, {}, r'learner\.lora\.rank 513: vLLM takes at most 512; change this setting, or use "merged"'),
        ({"rank": 8, "quantization": "nf4"}, {}, r'learner\.lora\.quantization "nf4".*or use "merged"'),
        ({"rank": 8}, {"generator": {"keep_stale_kv": True}}, r"generator\.keep_stale_kv"),
        ({"rank": 8}, {"weights": {"backend": "nccl"}}, r"weights\.backend nccl"),
    ],
)
def test_what_an_engine_cannot_serve_as_an_adapter_is_refused_with_the_merged_way(
    lora: dict[str, Any], sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        with_adapters(lora, **sections)


def test_the_merged_way_takes_them() -> None:
    for lora in ({}, {"rank": 513}, {"rank": 8, "quantization": "nf4"}):
        with_adapters(lora, generator={"lora": "merged", "keep_stale_kv": True})


def judged_by(verifier: str | list[str] | None, **grpo: Any) -> RunConfig:
    return run_config(data={"sources": [{"path": "d", "verifier": verifier}]}, grpo=grpo)


@pytest.mark.parametrize("verifier", ["soft_overlong", ["reward_model", "Max_Length"]])
def test_a_filter_by_what_is_correct_is_refused_where_no_source_has_a_verifier_that_says_it(verifier: Any) -> None:
    with pytest.raises(InvalidArgument, match=r'grpo.filter_groups_by: "correct"'):
        judged_by(verifier, filter_groups_by="correct")
    for said_by in ("gsm8k", "my_function", None):  # Without a verifier the rows name theirs.
        assert judged_by(said_by, filter_groups_by="correct")


def test_training_on_what_the_filter_leaves_out_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"filter_groups_by.*keep_zero_signal"):
        judged_by("gsm8k", filter_groups_by="correct", keep_zero_signal=True)
