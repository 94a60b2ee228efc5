"""The bound of a ledger's size, against a ledger that is written."""

from pathlib import Path

import numpy as np
import pytest

from services.coordinator.launcher.ledger_size import most_ledger_bytes
from services.coordinator.store.ledger import Ledger
from shoal.config import RunConfig, parse_config
from shoal.rollout import Completion, FinishReason, Prompt, Support, VersionSpan, WeightVersion
from shoal.scores import Score, ScoreOutcome, VerifierScore


def config_of(**sections: object) -> RunConfig:
    values: dict[str, object] = {
        "model": {"path": "m"},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 100},
        "sampling": {"max_completion_tokens": 100_000},
        "grpo": {"group_size": 4, "groups_per_step": 8, "max_staleness": 0},
        "checkpoint": {"every_steps": 10, "keep_last": 1},
        "run": {"num_steps": 100},
    }
    return parse_config(values | sections)


GROUP_TOKENS = 4 * 100_000


def test_texts_of_all_steps_and_tokens_until_a_checkpoint_count() -> None:
    num_groups = 100 * 8 + 8
    # Those of ten steps, those in flight, and those in flight at a checkpoint that is kept and one that is written.
    num_waiting = 10 * 8 + 3 * 8
    rows = num_groups * 4 * (200 + 500) + 2 * 8 * 4 * 200
    texts = num_groups * 5 * (100 + GROUP_TOKENS)
    tokens = num_waiting * GROUP_TOKENS * 12 + 3 * (128 << 20)
    assert most_ledger_bytes(config_of()) == rows + texts + tokens


@pytest.mark.parametrize(
    ("sections", "added"),
    [
        ({"sampling": {"max_completion_tokens": 100_000, "top_k": 20}}, 104 * GROUP_TOKENS * (4 * 20 + 4)),
        # Never more tokens wait than the run samples.
        (
            {"checkpoint": {"every_steps": 500, "keep_last": 1}},
            (808 - 104) * GROUP_TOKENS * 12 - 3 * (128 << 20),
        ),
        (
            {"checkpoint": {"every_steps": 10, "keep_last": 3}},
            2 * (8 * 4 * 200 + 8 * GROUP_TOKENS * 12 + (128 << 20)),
        ),
    ],
)
def test_supports_rare_checkpoints_and_more_copies_take_more(sections: dict[str, object], added: int) -> None:
    assert most_ledger_bytes(config_of(**sections)) - most_ledger_bytes(config_of()) == added


def test_a_run_whose_steps_are_not_counted_yet_has_those_until_a_checkpoint() -> None:
    assert most_ledger_bytes(config_of(run={"total_epochs": 3})) == most_ledger_bytes(config_of(run={"num_steps": 10}))


def test_groups_that_active_sampling_may_add_count() -> None:
    grpo = {"group_size": 4, "groups_per_step": 8, "max_staleness": 0}
    more = {**grpo, "active_sampling": True, "max_refills": 2}
    assert most_ledger_bytes(config_of(grpo=more)) > 2.5 * most_ledger_bytes(config_of(grpo=grpo))


async def test_a_ledger_of_texts_and_supports_of_the_greatest_length_stays_within_the_bound(tmp_path: Path) -> None:
    num_tokens, top_k = 1000, 20
    # Five bytes a token, two letters of which differ from completion to completion.
    completions = [
        Completion(
            sample_index=index,
            token_ids=np.arange(num_tokens, dtype=np.int32),
            behavior_logprobs=np.zeros(num_tokens, np.float32),
            finish_reason=FinishReason.LENGTH,
            version_spans=(VersionSpan(WeightVersion(0, 0), 0, num_tokens),),
            seed=index,
            text=f"{index:02d}abc" * num_tokens,
            support=Support(
                token_ids=np.zeros(num_tokens * top_k, np.int32), counts=np.full(num_tokens, top_k, np.int32)
            ),
        )
        for index in range(4)
    ]
    verdict = (VerifierScore("math", ScoreOutcome.SCORED, 1.0, "x" * 200, 0.1),)
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    for number in range(16):
        prompt = Prompt(f"sums:{number}", np.arange(100, dtype=np.int32), "abcde" * 100, ())
        await ledger.issued(number, number, f"g{number}", prompt, "ab" * 16, 0, "")
        await ledger.sampled(number, completions, 0, "generator-0")
        await ledger.scored(number, [Score(index, ScoreOutcome.SCORED, 1.0, verdict) for index in range(4)], 0)
    await ledger.close()
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    # One step of 8 groups, and as many in flight.
    bound = most_ledger_bytes(
        config_of(run={"num_steps": 1}, sampling={"max_completion_tokens": num_tokens, "top_k": top_k})
    )
    assert 0.8 * bound < written < bound, f"{written} bytes are written, and at most {bound} are expected"
