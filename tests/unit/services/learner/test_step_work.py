"""What a step reads, packs and reduces on one of two ranks, with an engine that computes nothing."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from services.learner import learner as module
from services.learner.learner import Learner
from services.learner.model import packing
from services.learner.model.flops import Work
from services.learner.model.packing import PackedRow
from shoal.config import RunConfig
from shoal.rollout import TrainBatch
from tests.support.configs import run_config
from tests.support.train_batches import make_batch, make_group


class Ranks:
    """One of some ranks that is alone in every sum. Records the number of values in each reduction."""

    device = torch.device("cpu")

    def __init__(self, rank: int, size: int) -> None:
        self.rank = self.data_rank = rank
        self.size = self.data_size = size
        self.reduced: list[int] = []

    def all_reduce(self, values: Tensor, *, maximum: bool = False) -> Tensor:
        self.reduced.append(values.numel())
        return values.detach().double()


class Engine:
    """Scores each token by its id, and applies every step."""

    kept_copies = nullcontext
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.rows: list[PackedRow] = []

    def forward(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        self.rows.append(row)
        logprobs_C = -row.targets_C.float()
        return logprobs_C.requires_grad_(), torch.zeros_like(logprobs_C)

    def accumulate(self, loss: Tensor, *, is_last: bool) -> None:
        loss.backward()

    def apply(self, rate: float, *, refuse: bool) -> Any:
        return SimpleNamespace(applied=True, grad_norm=1.0)


def learner_of(ranks: Ranks, **sections: Any) -> tuple[Learner, Engine]:
    config: RunConfig = run_config(**sections)
    engine = Engine()
    learner = Learner(config, ranks, engine, None, lm=None, model=None, pack_tokens=64)  # type: ignore[arg-type]
    learner.flops = SimpleNamespace(of=lambda row, **_: Work())  # type: ignore[assignment]
    return learner, engine


def step_of(length: int) -> TrainBatch:
    rng = np.random.default_rng(0)
    groups = [
        make_group(f"g{number}", num_prompt_tokens=4, completion_lengths=[length] * 4, rng=rng) for number in range(8)
    ]
    return make_batch(groups=groups)


def reductions(length: int, **sections: Any) -> list[int]:
    ranks = Ranks(0, 2)
    learner, _ = learner_of(ranks, **sections)
    assert learner.step(step_of(length)).applied
    return ranks.reduced


def test_a_step_reduces_sums_whose_number_does_not_depend_on_its_tokens() -> None:
    grpo = {"groups_per_step": 8, "num_mini_batches": 2, "num_epochs": 2, "group_size": 4}
    found = reductions(5, grpo=grpo, loss={"baseline": "behavior"})
    assert found == reductions(50, grpo=grpo, loss={"baseline": "behavior"})
    # The sums and the maximum of each of four optimizer steps; those of the gap, and the work, once.
    assert len(found) == 2 * 4 + 2 + 1, found
    assert sum(found) * 8 < 2000, f"{sum(found) * 8} bytes"


def test_a_rank_of_two_collects_the_values_of_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[tuple[int, int, int]] = []
    original = module.LossTokens.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, stretches: Any, num_completions: int) -> Any:
        collected.extend((stretch.completion_index, stretch.start, stretch.end) for stretch in stretches)
        return original(cls, stretches, num_completions)

    monkeypatch.setattr(module.LossTokens, "of", classmethod(of))
    by_rank = []
    for rank in range(2):
        collected.clear()
        learner, _ = learner_of(Ranks(rank, 2))
        learner.step(step_of(20))
        by_rank.append(sorted(collected))
    one, other = by_rank
    assert len(one) == len(other) == 16, f"{len(one)} and {len(other)} of 32 completions"
    assert sorted(one + other) == [(index, 0, 20) for index in range(32)], "each completion on one rank, once"


def test_a_completion_costs_few_calls_before_the_first_forward() -> None:
    """Counts calls of functions, since their number does not depend on the machine; learner_host.py measures time."""
    rng = np.random.default_rng(0)
    groups = [
        make_group(f"g{number}", num_prompt_tokens=20, completion_lengths=rng.integers(5, 26, size=8).tolist(), rng=rng)
        for number in range(64)
    ]
    batch = make_batch(groups=groups)
    learner, engine = learner_of(Ranks(0, 8))
    learner.model = SimpleNamespace(vocab_size=256, max_context_tokens=None)  # type: ignore[assignment]
    learner.pack_tokens = 16384
    num_calls = 0

    def forward(*_: Any) -> Any:
        raise KeyboardInterrupt

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    engine.forward = forward  # type: ignore[assignment]
    packing._plan.cache_clear()
    sys.setprofile(count)
    try:
        learner.check(batch)
        learner.rollouts_of_parts(batch.groups)
        learner.step(batch)
    except KeyboardInterrupt:
        sys.setprofile(None)
    calls = num_calls / (64 * 8)
    assert calls <= 42, f"{calls:.1f} calls for each of 512 completions"


def test_a_row_is_packed_after_the_forward_of_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, engine = learner_of(Ranks(0, 1))
    packed_before: list[int] = []
    original = packing.pack_row

    def pack_row(*arguments: Any) -> PackedRow:
        packed_before.append(len(engine.rows))
        return original(*arguments)

    monkeypatch.setattr(packing, "pack_row", pack_row)
    learner.step(step_of(20))
    assert packed_before == list(range(len(engine.rows))) and len(engine.rows) > 8, packed_before


def test_epochs_and_shares_need_one_packing_plan_a_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    original = packing.plan_packing

    def plan_packing(*arguments: Any, **named: Any) -> Any:
        planned.append(len(arguments[0]))
        return original(*arguments, **named)

    monkeypatch.setattr(packing, "plan_packing", plan_packing)
    packing._plan.cache_clear()
    grpo = {"groups_per_step": 8, "num_mini_batches": 2, "num_epochs": 3, "group_size": 4}
    learner, _ = learner_of(Ranks(0, 2), grpo=grpo, loss={"baseline": "behavior"})
    batch = step_of(21)
    learner.rollouts_of_parts(batch.groups)
    learner.step(batch)
    assert len(planned) <= 2, f"{len(planned)} plans"


def test_ranks_share_the_sequences_whose_log_probabilities_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 256, size=length).astype(np.int32) for length in (30, 20, 40, 10, 25, 60, 33)]
    scored, num_forwards = [], []
    for rank in range(3):
        learner, engine = learner_of(Ranks(rank, 3))
        values = learner.logprobs(sequences, 1.0)
        scored.append(torch.cat([torch.from_numpy(part) for part in values]))
        num_forwards.append(len(engine.rows))
    assert len(set(num_forwards)) == 1, f"{num_forwards}: a rank waits for the others in each forward"
    assert num_forwards[0] * 3 <= 9, num_forwards
    assert all(((part == 0) | (scored[0] + scored[1] + scored[2] == part)).all() for part in scored), "each by one rank"
    expected = np.concatenate([-sequence[1:].astype(np.float32) for sequence in sequences])
    np.testing.assert_array_equal(sum(scored), expected)
