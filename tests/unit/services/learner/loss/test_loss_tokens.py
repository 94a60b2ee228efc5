"""The tokens of a step that count in the loss."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from services.learner.gap import GapSums
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import plan_mini_batches
from services.learner.model.batch_checks import check_batch, check_supports
from services.learner.model.packing import pack_for_rank
from shoal.config.tables.sampling import SamplingConfig
from shoal.rollout import Rollout, Support, TrainGroup
from tests.support.configs import run_config
from tests.support.train_batches import make_batch, make_groups

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "fixed-denominator")


def played(groups: Sequence[TrainGroup], *, masked: float = np.nan, token_advantage: float = 0.0) -> list[TrainGroup]:
    """Returns groups whose completions are episodes: every third token is the environment's, with these values."""

    def of(rollout: Rollout) -> Rollout:
        completion = rollout.completion
        mask = np.arange(completion.num_tokens) % 3 != 1
        behavior = np.where(mask, completion.behavior_logprobs, masked).astype(np.float32)
        advantages = np.where(mask, rollout.advantage, token_advantage).astype(np.float32)
        changed = replace(completion, behavior_logprobs=behavior, loss_mask=mask)
        return replace(rollout, completion=changed, token_advantages=advantages)

    return [replace(group, rollouts=tuple(map(of, group.rollouts))) for group in groups]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_masked_token_carries_changes_nothing_of_the_loss(mode: str) -> None:
    loss = {"aggregation": mode} | ({"denominator": 9} if mode in MODES[3:] else {})
    config = run_config(data={"sources": [{"path": "d"}]}, loss=loss)
    groups = make_groups()
    (plain,) = plan_mini_batches(played(groups), None, config)
    (changed,) = plan_mini_batches(played(groups, masked=-99.0, token_advantage=1e9), None, config)
    assert torch.equal(plain.factors_S, changed.factors_S), "the divisors count the policy's tokens alone"
    tokens, same = LossTokens.of_groups(plain.groups), LossTokens.of_groups(changed.groups)
    for name in (field.name for field in fields(LossTokens) if field.name not in ("completions", "sequences")):
        values = getattr(tokens, name)
        assert torch.equal(values, getattr(same, name)) or torch.isnan(values).all(), name
    assert not torch.isnan(tokens.behavior_logprobs_N).any()


def test_tokens_without_a_log_probability_that_are_masked_are_not_missing() -> None:
    tokens = LossTokens.of_groups(played(make_groups()))
    sums = GapSums(tokens.completions.num)
    sums.add(tokens.behavior_logprobs_N + 0.25, tokens.behavior_logprobs_N, tokens.completions)
    metrics = sums.metrics()
    assert metrics["val/num_missing_behavior_logprobs"] == 0
    assert metrics["val/logprob_gap_mean"] == metrics["val/logprob_gap_max"] == 0.25
    assert all(np.isfinite(value) for value in metrics.values()), metrics


def test_an_episode_is_accepted_and_its_environment_is_context_that_no_row_scores() -> None:
    groups = played(make_groups())
    check_batch(make_batch(groups=groups), vocab_size=260, max_positions=None)
    rows, _ = pack_for_rank(groups, max_tokens=100, rank=0, num_ranks=1)
    num_tokens = sum(rollout.completion.num_tokens for group in groups for rollout in group.rollouts)
    num_sampled = len(LossTokens.of_groups(groups))
    assert sum(len(row.targets_C) for row in rows) == num_sampled < num_tokens
    assert sum(row.num_tokens for row in rows) >= num_tokens


def test_the_support_of_an_environment_token_is_checked_and_left_out() -> None:
    def supported(rollout: Rollout) -> Rollout:
        completion = rollout.completion
        assert completion.loss_mask is not None
        counts = np.where(completion.loss_mask, 2, 1).astype(np.int32)
        ids = [[token, (token + 1) % 256][:count] for token, count in zip(completion.token_ids, counts, strict=True)]
        support = Support(np.concatenate([np.empty(0), *ids]).astype(np.int32), counts)
        return replace(rollout, completion=replace(completion, support=support))

    groups = [replace(group, rollouts=tuple(map(supported, group.rollouts))) for group in played(make_groups())]
    check_supports(make_batch(groups=groups), SamplingConfig(top_k=20))
    rows, _ = pack_for_rank(groups, max_tokens=100, rank=0, num_ranks=1)
    for row in rows:
        if row.support_CK is not None:
            assert torch.equal(row.support_CK[:, 0], row.targets_C) and (row.support_CK >= 0).all(), "two tokens each"
