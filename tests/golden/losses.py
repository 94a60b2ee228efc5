"""Golden loss cases run through the functions of the learner's step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import MiniBatch, Survey, Surveyed, survey_values, weigh_mini_batch
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.policy_loss import RowLoss, pick_tokens, row_loss
from shoal.config import RunConfig
from tests.golden import GoldenCase, as_array
from tests.support.configs import run_config


def run_with(**sections: Mapping[str, Any]) -> RunConfig:
    """Makes the configuration of a run with these tables; fields that are None keep their defaults."""
    given = {
        name: {key: value for key, value in table.items() if value is not None} for name, table in sections.items()
    }
    return run_config(**given)


def aggregation_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    mode = settings.get("aggregation", settings.get("mode"))
    divisor = settings.get("denominator", settings.get("max_completion_length"))
    counted = {"all": "count", "non-empty": "skip"}[settings.get("sequences_counted", "non-empty")]
    # GMPO has one loss for each sequence, which equals the mean over the sequence's tokens.
    ours = "seq-mean-token-mean" if mode == "mean over sequences" else mode
    return {"aggregation": ours, "denominator": divisor, "empty_sequences": counted}


@dataclass
class Matrices:
    """A case's [B][T] inputs, and the results of its step."""

    mask: Tensor
    logprobs: Tensor
    entropies: Tensor
    tokens: LossTokens
    mini_batch: MiniBatch
    result: RowLoss

    def spread(self, values_C: Tensor) -> Any:
        """Converts [C] values back to [B][T], with 0 where no token counts."""
        matrix = torch.zeros(self.mask.shape, dtype=values_C.dtype)
        matrix[self.mask] = torch.zeros(int(self.mask.sum()), dtype=values_C.dtype).index_copy(
            0, self.result.tokens.where_C, values_C
        )
        return matrix.numpy()

    @property
    def gradient(self) -> Any:
        return _grad(self.logprobs)

    @property
    def entropy_gradient(self) -> Any:
        return _grad(self.entropies)


def share(is_it: Tensor) -> float:
    """Returns the share of tokens where the flag is True; 0 without tokens."""
    return float(is_it.double().mean()) if len(is_it) else 0.0


def _grad(values: Tensor) -> Any:
    return np.zeros(values.shape) if values.grad is None else values.grad.numpy()


def matrix_of(case: GoldenCase, name: str) -> Tensor:
    return torch.from_numpy(as_array(case.inputs[name]))


def tokens_of(case: GoldenCase, baseline: str) -> LossTokens:
    """Collects the tokens under the mask, with the log-probabilities named `baseline` as the behavior policy's."""
    mask = matrix_of(case, "mask").bool()
    rows = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    behavior = matrix_of(case, baseline)[mask]

    def of_rows(name: str, default: float) -> Tensor:
        values = matrix_of(case, name) if name in case.inputs else torch.full((len(mask),), default).double()
        return values[rows]

    completions = Completions(rows, len(mask))
    return LossTokens(behavior, of_rows("advantages", 0.0), of_rows("scores", torch.nan), completions, completions)


def weigh(case: GoldenCase, tokens: LossTokens, run: RunConfig, surveyed: Surveyed | None) -> MiniBatch:
    """Makes the mini-batch of a case's tokens, each row of the case a completion."""
    num_tokens_S = tokens.completions.num_tokens()
    weights_S = matrix_of(case, "sample_weights") if "sample_weights" in case.inputs else torch.ones(len(num_tokens_S))
    return weigh_mini_batch((), num_tokens_S, weights_S, run, surveyed=surveyed)


def lose(case: GoldenCase, run: RunConfig, *, behavior: str = "old_logprobs") -> Matrices:
    """Runs a case forward and backward, like a mini-batch of one row in the learner.

    The proximal log-probabilities are the case's `old_logprobs`.
    """
    mask = matrix_of(case, "mask").bool()
    tokens = tokens_of(case, behavior)
    proximal = matrix_of(case, "old_logprobs")[mask]
    logprobs = matrix_of(case, "logprobs").requires_grad_()
    entropies = (matrix_of(case, "entropies") if "entropies" in case.inputs else torch.zeros_like(logprobs)).detach()
    entropies.requires_grad_()
    mini_batch = weigh(case, tokens, run, survey_values(Survey(proximal, entropies.detach()[mask], tokens), run))
    picked = pick_tokens(mini_batch, tokens, torch.arange(len(tokens)))
    reference = matrix_of(case, "ref_logprobs")[mask] if "ref_logprobs" in case.inputs else None
    result = row_loss(
        picked, logprobs[mask], entropies[mask], reference, run,
        kl_coef=run.kl.coef, num_counted=mini_batch.num_counted,
    )  # fmt: skip
    result.loss.backward()
    return Matrices(mask, logprobs, entropies, tokens, mini_batch, result)
