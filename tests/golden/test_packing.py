"""Packing of rows and balance of ranks, against other systems' numbers and the best possible ones."""

import numpy as np
import pytest

from shoal.grpo.bins import balanced_partition
from shoal.grpo.packing import GroupLengths, PackingPlan, Piece, plan_packing
from shoal.rollout import Completion, FinishReason, Rollout, TrainGroup, VersionSpan, WeightVersion
from tests.golden import GoldenCase, golden_cases


def _plan(case: GoldenCase) -> PackingPlan:
    """Plans rows with one group for each sample, so that a sample stays in one row."""
    groups = [GroupLengths(prompt, (done,)) for prompt, done in case.inputs["prompt_and_completion_lengths"]]
    return plan_packing(groups, max_tokens=case.config["pack_length"], num_ranks=case.config["min_num_packs"])


@golden_cases("packing", only=("small_exact",))
def test_few_samples_are_packed_into_as_few_rows_as_possible(case: GoldenCase) -> None:
    num_rows, optimum = _plan(case).num_rows, case.expected["optimal_bins"]
    assert num_rows == optimum, f"{num_rows} rows, {optimum} would do"


@golden_cases("packing", only=("large_bounds",))
def test_many_samples_are_packed_within_two_percent_of_the_bound(case: GoldenCase) -> None:
    num_rows, bound = _plan(case).num_rows, case.expected["lower_bound_bins"]
    others = case.expected["nemo_first_fit_decreasing_bins"]
    assert bound <= num_rows <= others, f"{num_rows} rows; at least {bound}, first-fit decreasing takes {others}"
    assert num_rows <= 1.02 * bound, f"{num_rows} rows; at least {bound} are needed"


@golden_cases("packing", only=("min_num_packs",))
def test_every_rank_has_a_row_and_no_more_forwards_than_needed(case: GoldenCase) -> None:
    plan, num_ranks = _plan(case), case.config["min_num_packs"]
    num_samples = len(case.inputs["prompt_and_completion_lengths"])
    assert plan.num_rows >= min(num_ranks, num_samples), f"{plan.num_rows} rows for {num_ranks} ranks"
    needed = -(-case.expected["optimal_bins_ignoring_minimum"] // num_ranks)
    assert len(plan.rows) == needed, f"{len(plan.rows)} forwards, {needed} would do"


@golden_cases("packing", only=("balanced_partition",))
def test_ranks_are_balanced_as_well_as_by_differencing_or_better(case: GoldenCase) -> None:
    lengths, num_parts = case.inputs["lengths"], case.config["partitions"]
    parts = balanced_partition(lengths, num_parts, same_count=case.config["same_number_of_samples_each"])
    heaviest = max(sum(lengths[item] for item in items) for items in parts)
    optimum, others = case.expected["optimal_max_tokens"], case.expected["verl_max_tokens"]
    assert sorted(item for items in parts for item in items) == list(range(len(lengths)))
    assert optimum <= heaviest <= others, f"heaviest part {heaviest}; the optimum is {optimum}, verl's {others}"


@golden_cases("packing", only=("layout",))
def test_a_row_contains_its_samples_end_to_end(case: GoldenCase) -> None:
    """Checks the arrays of a row with the vector's samples.

    Completions contain no padding here: the engine's tokens are unchanged. So the pad tokens of these cases are removed
    first.
    """
    torch = pytest.importorskip("torch")
    from services.learner.loss.loss_tokens import LossTokens
    from services.learner.model.contexts import Contexts
    from services.learner.model.packing import pack_row

    pad = case.config["pad_token_id"]
    groups = []
    for prompt, tokens, mask, logprobs in zip(
        case.inputs["prompts"],
        case.inputs["completions"],
        case.inputs["completion_masks"],
        case.inputs["completion_logprobs"],
        strict=True,
    ):
        kept = [place for place, token in enumerate(tokens) if token != pad]
        counts = np.array([bool(mask[place]) for place in kept])
        completion = Completion(
            sample_index=0,
            token_ids=np.array([tokens[place] for place in kept], np.int32),
            behavior_logprobs=np.array([logprobs[place] for place in kept], np.float32),
            finish_reason=FinishReason.STOP,
            version_spans=(VersionSpan(WeightVersion(0, 0), 0, len(kept)),),
            seed=0,
            loss_mask=counts if case.config["mask_tool_tokens"] else None,
        )
        groups.append(TrainGroup("g", np.array(prompt, np.int32), (Rollout(completion, 1.0),)))
    number = 0
    for row, tokens in enumerate(case.expected["tokens"]):
        samples = range(number, number + len(case.expected["sample_lengths"][row]))
        number = samples.stop
        pieces = tuple(
            Piece(sample, (0,), case.expected["sample_lengths"][row][sample - samples[0]]) for sample in samples
        )
        packed = pack_row(Contexts(groups), pieces)
        assert packed.token_ids_R.tolist() == tokens
        assert packed.positions_R.tolist() == case.expected["position_ids"][row]
        trained = [place for place, sample in enumerate(case.expected["response_sample"][row]) if sample]
        # The position before a token predicts it.
        assert packed.predicting_C.tolist() == [place - 1 for place in trained]
        wanted = torch.tensor([case.expected["rollout_logprobs"][row][place] for place in trained])
        behavior = LossTokens.of(packed.stretches, len(groups)).behavior_logprobs_N
        assert torch.allclose(behavior, wanted), f"got {behavior.tolist()}, wanted {wanted.tolist()}"
