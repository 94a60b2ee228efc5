"""`run.deterministic`, which asks for what it needs, and says what it cannot keep."""

from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.notes import notes_on
from shoal.errors import InvalidArgument

NEEDED: dict[str, dict[str, Any]] = {
    "run": {"deterministic": True, "num_threads": 1},
    "grpo": {"max_staleness": 0},
    "generator": {"dtype": "float32"},
    "learner": {"compute_dtype": "float32"},
}


def config(**sections: dict[str, Any]) -> dict[str, Any]:
    merged = {name: NEEDED.get(name, {}) | sections.get(name, {}) for name in NEEDED.keys() | sections.keys()}
    return {"model": {"path": "unused"}, "data": {"sources": [{"path": "unused.jsonl"}]}, **merged}


def test_a_deterministic_run_on_cpus_in_float32_without_staleness_is_accepted() -> None:
    run = parse_config(config()).run
    assert (run.deterministic, run.num_threads) == (True, 1)


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
        parse_config(config(**sections))


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    bare = {"model": {"path": "unused"}, "data": {"sources": [{"path": "unused.jsonl"}]}}
    with pytest.raises(InvalidArgument) as refused:
        parse_config(bare | {"run": {"deterministic": True}, "grpo": {"max_staleness": 2}})
    needed = ("run.num_threads", "grpo.max_staleness 0", "generator.dtype", "learner.compute_dtype")
    assert [name for name in needed if name not in refused.value.message] == [], refused.value.message


def test_episodes_need_environments_with_room_for_all_of_them() -> None:
    played = {"sources": [{"path": "unused.jsonl", "environment": "calculator"}]}
    values = config(data=played, grpo={"max_staleness": 0, "group_size": 7, "groups_per_step": 8})
    parse_config(values | {"environments": [{"name": "calculator", "max_episodes": 64}]})
    with pytest.raises(InvalidArgument, match=r"needs environments\.max_episodes 64"):
        parse_config(values | {"environments": [{"name": "calculator", "max_episodes": 63}]})


def test_verifiers_that_shoal_does_not_determine_are_noted() -> None:
    assert notes_on(parse_config(config())) == []
    judge = {"base_url": "http://127.0.0.1:8000/v1", "model": "judge"}
    (note,) = notes_on(parse_config(config(reward={"judge": judge, "custom": {"mine": {"file": "/home/me/mine.py"}}})))
    assert "reward.judge and reward.custom depend on prompt and completion alone" in note
