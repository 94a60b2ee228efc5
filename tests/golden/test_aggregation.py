"""Every aggregation, whole and in parts, against other systems' values."""

from typing import Any

import numpy as np
import pytest
import torch

from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import MiniBatch
from services.learner.loss.policy_loss import pick_tokens
from services.learner.loss.tensors import map_tensors
from tests.golden import GoldenCase, golden_cases
from tests.golden.losses import aggregation_of, matrix_of, run_with, tokens_of, weigh


def mini_batch_of(case: GoldenCase) -> tuple[MiniBatch, LossTokens]:
    tokens = tokens_of(case, "loss_matrix")
    return weigh(case, tokens, run_with(loss=aggregation_of(case.config)), None), tokens


def part_of_loss(mini_batch: MiniBatch, tokens: LossTokens, rows: list[int]) -> float:
    """Returns the share of the loss that a forward over some of the sequences adds."""
    losses = tokens.behavior_logprobs_N  # The matrix under the mask contains the tokens' losses here.
    at = torch.nonzero(torch.isin(tokens.completions.index_C, torch.tensor(rows))).squeeze(1)
    part = map_tensors(tokens, lambda values: values[at])
    return float((pick_tokens(mini_batch, part, at).factors_C * losses[at]).sum())


@golden_cases("aggregation")
def test_the_loss_is_the_sum_of_its_parts_however_it_is_cut(case: GoldenCase) -> None:
    mini_batch, tokens = mini_batch_of(case)
    num_rows = tokens.completions.num
    case.check("loss", part_of_loss(mini_batch, tokens, list(range(num_rows))))
    if "grad_loss_matrix" in case.expected:
        mask = matrix_of(case, "mask").bool()
        factors = torch.zeros(mask.shape, dtype=torch.float64)
        factors[mask] = tokens.completions.spread(mini_batch.factors_S)
        case.check("grad_loss_matrix", factors)
    for number, parts in case.inputs.get("splits", {}).items():
        found = [part_of_loss(mini_batch, tokens, rows) for rows in parts]
        wanted = case.expected["micro_batch_contributions"][number]
        np.testing.assert_allclose(found, np.array(wanted, dtype=float), rtol=case.tolerance, atol=case.tolerance)
        assert sum(found) == pytest.approx(case.expected["loss"], rel=case.tolerance, abs=case.tolerance)
        assert_differs_from_local_means(case, number, sum(found))


def assert_differs_from_local_means(case: GoldenCase, number: str, found: float) -> None:
    """Asserts that our value is not the mean of local means, where that is another number."""
    wrong: dict[str, Any] = case.expected.get("wrong_mean_of_local_means") or {}
    value = wrong.get(number)
    if value is not None and abs(value - case.expected["loss"]) > 1e-3:
        assert abs(found - value) > 1e-4, f"{case.name}: {found} is the mean of local means"
