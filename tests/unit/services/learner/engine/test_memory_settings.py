"""Rows and gradient checkpointing, if they are unset, follow the memory of the GPUs."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.learner.engine import memory_settings
from services.learner.engine.memory_settings import settle_on_memory
from shoal.config import RunConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.suggest.memory import GIB, learner_memory
from shoal.suggest.rows import fit_rows
from shoal.suggest.shape import ModelShape, model_shape
from tests.support.configs import run_config

QWEN_15B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
H100, H200 = 79 * GIB, 140 * GIB


class Group:
    """The process group of a rank with a GPU, beside ranks with other GPUs."""

    device, size = torch.device("cuda", 0), 2

    def __init__(self, *others: int) -> None:
        self.others = others
        self.num_collectives = 0

    def all_reduce(self, values: torch.Tensor, *, maximum: bool) -> torch.Tensor:
        assert maximum
        self.num_collectives += 1
        return torch.stack([values, *(torch.tensor([-other, -1]) for other in self.others)]).amax(dim=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_15B))
    return tmp_path


@pytest.fixture(autouse=True)
def _with_fused_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_settings.importlib.util, "find_spec", lambda name: name == "liger_kernel")
    monkeypatch.setattr(memory_settings, "can_run_kernels", lambda device: True)


def run(learner: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return run_config("m", learner=learner or {}, sampling={"max_completion_tokens": 1024}, **sections)


def fitted(folder: Path, gpu_bytes: int, learner: dict[str, Any] | None = None, **sections: Any) -> tuple[Any, Any]:
    settings = fit_rows(run(learner, **sections), model_shape(str(folder)), gpu_bytes=gpu_bytes).learner
    return settings.pack_tokens, settings.gradient_checkpointing


def settled(
    monkeypatch: pytest.MonkeyPatch, folder: Path, group: Any, own: int, settings: LearnerConfig
) -> LearnerConfig:
    memory = SimpleNamespace(total_memory=own)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    return settle_on_memory(run(), settings, folder, group, is_stage_open=False)


@pytest.mark.parametrize(
    ("gpu_bytes", "expected"),
    [
        (H200, (16384, False)),
        (H100, (8192, False)),
        (48 * GIB, (4096, False)),
        (42 * GIB, (16384, True)),
        (39 * GIB, (8192, True)),
        (35 * GIB, (4096, True)),
        (4 * GIB, (4096, True)),
    ],
)
def test_a_larger_gpu_gets_longer_rows_and_a_small_one_recomputes(
    folder: Path, gpu_bytes: int, expected: tuple[int, bool]
) -> None:
    assert fitted(folder, gpu_bytes) == expected, f"1.5B parameters on {gpu_bytes / GIB:.0f} GiB"


@pytest.mark.parametrize("gib", range(30, 141, 5))
def test_the_settled_rows_fit_and_the_next_longer_rows_would_not(folder: Path, gib: int) -> None:
    tokens, is_checkpointing = fitted(folder, gib * GIB)
    shape, free = model_shape(str(folder)), 0.9 * gib - 1.5

    def needed(tokens: int, is_checkpointing: bool) -> float:
        learner = {"pack_tokens": tokens, "gradient_checkpointing": is_checkpointing}
        return learner_memory(run(learner), shape).total / GIB

    assert is_checkpointing == (needed(4096, False) > free), f"{needed(4096, False):.1f} of {free:.1f} GiB"
    if tokens > 4096:
        assert needed(tokens, is_checkpointing) <= free
    if tokens < 16384:
        assert needed(2 * tokens, is_checkpointing) > free, f"{tokens} tokens, though twice as many fit {free:.1f} GiB"


def test_an_engine_on_the_same_gpu_takes_its_share_first(folder: Path) -> None:
    shared: dict[str, Any] = {"launch": {"single_gpu": True}, "grpo": {"max_staleness": 0}}
    for used, expected in ((0.1, (8192, False)), (0.3, (4096, False)), (0.5, (4096, True))):
        found = fitted(folder, H100, generator={"gpu_memory_utilization": used}, **shared)
        assert found == expected, f"an engine with {used} of the memory"


def test_an_engine_that_sleeps_while_the_learner_trains_takes_no_more_than_its_runtime(folder: Path) -> None:
    shared: dict[str, Any] = {"launch": {"single_gpu": True}, "grpo": {"max_staleness": 0}}
    for used in (0.1, 0.5, 0.8):
        sleeping = {"gpu_memory_utilization": used, "sleep_while_training": True}
        assert fitted(folder, H100, generator=sleeping, **shared) == (8192, False), f"an engine with {used}"
    runtime = int(1.5 * GIB / 0.9) + 1
    for gpu_bytes in range(36 * GIB, 140 * GIB, 4 * GIB):
        found = fitted(folder, gpu_bytes + runtime, generator=sleeping, **shared)
        assert found == fitted(folder, gpu_bytes), f"{gpu_bytes / GIB:.0f} GiB"


def test_an_engine_takes_its_share_where_the_reference_reads_rows_before_the_engine_sleeps(folder: Path) -> None:
    shared: dict[str, Any] = {"launch": {"single_gpu": True}, "grpo": {"max_staleness": 0}}
    engine = {"gpu_memory_utilization": 0.5}
    for place, counts in (("reward", True), ("loss", False)):
        kl = {"coef": 0.1, "place": place}
        awake = fitted(folder, H200, generator=engine, kl=kl, **shared)
        asleep = fitted(folder, H200, generator=engine | {"sleep_while_training": True}, kl=kl, **shared)
        assert (asleep == awake) == counts, f"KL in the {place}: {asleep} asleep, {awake} awake"


def test_explicit_values_stay_and_decide_the_other(folder: Path) -> None:
    assert fitted(folder, 41 * GIB, {"pack_tokens": 1024}) == (1024, False), "a short row needs no recomputation"
    assert fitted(folder, H100, {"pack_tokens": 40000}) == (40000, True)
    assert fitted(folder, H100, {"gradient_checkpointing": True}) == (16384, True)
    assert fitted(folder, 41 * GIB, {"gradient_checkpointing": False}) == (4096, False), "the user forbids it"


def test_a_sequence_longer_than_a_row_has_to_fit_too(folder: Path) -> None:
    config = run_config("m", sampling={"max_completion_tokens": 32000})
    settings = fit_rows(config, model_shape(str(folder)), gpu_bytes=H100).learner
    assert settings.gradient_checkpointing, "a sequence of 32,000 tokens gets a row of its own"


def test_all_ranks_take_the_values_of_the_smallest_gpu_with_one_collective(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    settings = LearnerConfig(zero_stage=0, compute_dtype="bfloat16")
    alone = settled(monkeypatch, folder, Group(), 64 * GIB, settings)
    for own, other in ((64 * GIB, H200), (H200, 64 * GIB)):
        group = Group(other)
        assert settled(monkeypatch, folder, group, own, settings) == alone
        assert group.num_collectives == 1
    assert alone.pack_tokens == 8192 and alone.zero_stage == 0


def test_on_a_cpu_rows_have_4096_tokens_and_nothing_is_recomputed(folder: Path) -> None:
    group: Any = SimpleNamespace(device=torch.device("cpu"), size=1)
    settings = settle_on_memory(run(), LearnerConfig(), folder, group, is_stage_open=True)
    assert (settings.pack_tokens, settings.gradient_checkpointing) == (4096, False)


@pytest.mark.parametrize("change", [{"num_experts": 8}, {"model_type": "gemma2"}, {"hidden_size": None}])
def test_a_model_without_a_good_estimate_keeps_the_values_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, folder: Path, change: dict[str, Any]
) -> None:
    (folder / "config.json").write_text(json.dumps(QWEN_15B | change))
    settings = settled(monkeypatch, folder, Group(H100), H100, LearnerConfig())
    assert (settings.pack_tokens, settings.gradient_checkpointing) == (4096, False)


@pytest.mark.parametrize(("num_ranks", "stage"), [(4, 3), (8, 2), (64, 2)])
def test_an_open_stage_is_the_lowest_that_fits(folder: Path, num_ranks: int, stage: int) -> None:
    shape, ranks = _seven_billion(folder), {"launch": {"num_learner_ranks": num_ranks}}
    opened = fit_rows(run({"zero_stage": 1}, **ranks), shape, gpu_bytes=H100, is_stage_open=True)
    assert opened.learner.zero_stage == stage and opened.fits, f"{num_ranks} ranks hold 7 billion parameters"
    chosen = fit_rows(run({"zero_stage": 1}, **ranks), shape, gpu_bytes=H100)
    assert chosen.learner.zero_stage == 1 and not chosen.fits, "a stage that somebody chose stays"
    rows = fit_rows(run({"zero_stage": 1, "pack_tokens": 8192}, **ranks), shape, gpu_bytes=H100, is_stage_open=True)
    long = rows.learner
    assert (long.zero_stage, long.gradient_checkpointing) == (3 if num_ranks == 4 else 2, True), long


def test_an_open_stage_rises_also_for_rows_and_checkpointing_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    _seven_billion(folder)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=H100))
    chosen = LearnerConfig(zero_stage=1, compute_dtype="bfloat16", pack_tokens=8192, gradient_checkpointing=True)
    group: Any = Group()
    group.size = 4
    found = settle_on_memory(run(), chosen, folder, group, is_stage_open=True)
    assert found == chosen.model_copy(update={"zero_stage": 3}), found
    assert settle_on_memory(run(), chosen, folder, group, is_stage_open=False) == chosen


def test_a_learner_that_does_not_fit_warns(
    monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _seven_billion(folder)
    chosen = LearnerConfig(zero_stage=1, compute_dtype="bfloat16")
    with caplog.at_level(logging.WARNING):
        settled(monkeypatch, folder, Group(), H200, chosen)
        assert not caplog.records, caplog.text
        settled(monkeypatch, folder, Group(), 64 * GIB, chosen)
    assert [record.levelname for record in caplog.records] == ["WARNING"], caplog.text
    assert "generator.sleep_while_training" in caplog.text


def _seven_billion(folder: Path) -> ModelShape:
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps(QWEN_15B | sizes | {"tie_word_embeddings": False}))
    return model_shape(str(folder))
