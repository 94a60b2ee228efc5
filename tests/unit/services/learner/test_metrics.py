"""Sums over the tokens that count, and their means."""

import pytest
import torch

from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import Survey, survey_values, weigh_mini_batch
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.policy_loss import pick_tokens, row_loss
from services.learner.metrics import TokenSums, rate_metrics
from services.learner.model.flops import Work
from tests.support.configs import run_config


def test_the_kl_of_completions_is_a_mean_over_those_with_a_token_left() -> None:
    """Uses three completions of 2, 1 and 1 tokens; the last has a ratio of e, and is rejected."""
    run = run_config(
        loss={"baseline": "proximal"},
        kl={"coef": 0.1, "estimator": "k1"},
        correction={"filters": [{"high": 2.0, "reject": True}]},
    )
    behavior, reference = torch.full((4,), -2.0), torch.tensor([-2.1, -2.3, -2.6, -9.0])
    logprobs = torch.tensor([-2.0, -2.0, -2.0, -1.0])
    completions = Completions(torch.tensor([0, 0, 1, 2]), 3)
    tokens = LossTokens(behavior, torch.ones(4), torch.ones(4), completions, completions)
    surveyed = survey_values(Survey(logprobs, torch.zeros(4), tokens), run)
    mini_batch = weigh_mini_batch((), completions.num_tokens(), torch.ones(3), run, surveyed=surveyed)
    sums = TokenSums()
    assert sums.kl_of_completions == 0
    picked = pick_tokens(mini_batch, tokens, torch.arange(4))
    sums.add(row_loss(picked, logprobs, torch.zeros(4), reference, run, kl_coef=0.1, num_counted=3))
    # The means of 0.1 and 0.3, and of 0.6: 0.2 and 0.6.
    assert sums.kl_of_completions == pytest.approx(0.4), sums.kl_of_completions


def test_rates_are_those_of_one_rank_and_an_unknown_device_has_no_utilization() -> None:
    work = Work(num_tokens=8000, flops=4e12)  # Of four ranks together.
    on_gpus = rate_metrics(work, training_s=2.0, num_ranks=4, peak=1e12)
    assert on_gpus == {"learner_tokens_per_second_per_rank": 1000.0, "learner_mfu": 0.5}
    assert rate_metrics(work, training_s=2.0, num_ranks=4, peak=None).keys() == {"learner_tokens_per_second_per_rank"}
