"""Loss and gradient do not depend on packing, order and number of ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import MiniBatch, Survey, needs_survey, plan_mini_batches
from services.learner.loss.policy_loss import RowTokens, pick_tokens, row_loss
from services.learner.model.packing import PackedRow, pack_for_rank
from services.learner.model.policy import Policy, load_policy
from shoal.config import RunConfig
from shoal.rollout import Episode, EpisodeSegment, Rollout, TrainGroup
from shoal.scores import ScoreOutcome
from tests.support.loss_variants import VARIANTS, variant_config, varied_groups
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Policy, Policy]]:
    """Loads a policy, and another model as its reference, so that the KL is not 0."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = variant_config(folder, "ppo_clip").learner
    policy, reference = load_policy(folder, config), load_policy(folder, config)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.05)
    # So small a model gains nothing from more threads, and on a busy machine it waits for them.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield policy, reference
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class Spread:
    """A layout of a mini-batch: rows, order, ranks."""

    max_tokens: int = 4096
    num_ranks: int = 1
    is_reversed: bool = False
    """Reverses the rows, and the groups of the step."""
    is_cut: bool = False
    """Cuts each completion into segments, each behind all that came before it."""


def look(policy: Policy, groups: Sequence[TrainGroup]) -> Survey:
    tokens = LossTokens.of_groups(groups)
    seen = torch.zeros(2, len(tokens))
    for row in pack_for_rank(groups, max_tokens=4096, rank=0, num_ranks=1)[0]:
        with torch.no_grad():
            seen[:, row.at_C] = torch.stack(policy(row, 1.0))
    return Survey(*seen, tokens)


def tokens_of(mini_batch: MiniBatch, row: PackedRow) -> RowTokens:
    return pick_tokens(mini_batch, LossTokens.of(row.stretches, mini_batch.num_completions), row.at_C)


def learn(policy: Policy, reference: Policy, config: RunConfig, spread: Spread) -> tuple[float, Tensor]:
    """Computes the loss of a mini-batch, and its whole gradient."""
    groups = varied_groups(num_groups=2)[:: -1 if spread.is_reversed else 1]
    if spread.is_cut:
        groups = [replace(group, rollouts=tuple(cut_in_two(group, r) for r in group.rollouts)) for group in groups]
    policy.scorer.entropy_gradient = config.loss.entropy_coef != 0
    policy.zero_grad()
    (mini_batch,) = plan_mini_batches(groups, look(policy, groups) if needs_survey(config) else None, config)
    parts = [
        add_gradient(policy, reference, config, mini_batch, rank=rank, spread=spread)
        for rank in range(spread.num_ranks)
    ]
    gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None])
    return sum(parts), gradient


def cut_in_two(group: TrainGroup, rollout: Rollout) -> Rollout:
    """The rollout in two segments, the second behind the prompt and the first one's tokens."""
    completion, prompt = rollout.completion, group.prompt_token_ids
    middle = completion.num_tokens // 2
    segments = (
        EpisodeSegment(prompt, 0, middle),
        EpisodeSegment(np.concatenate([prompt, completion.token_ids[:middle]]), middle, completion.num_tokens),
    )
    episode = Episode((), "done", False, ScoreOutcome.SCORED, segments=segments)
    return replace(rollout, completion=replace(completion, episode=episode))


def add_gradient(
    policy: Policy, reference: Policy, config: RunConfig, mini_batch: MiniBatch, *, rank: int, spread: Spread
) -> float:
    """Adds one rank's share of the gradient; returns its share of the loss."""
    rows, _ = pack_for_rank(mini_batch.groups, max_tokens=spread.max_tokens, rank=rank, num_ranks=spread.num_ranks)
    total = 0.0
    for row in list(rows)[:: -1 if spread.is_reversed else 1]:
        with torch.no_grad():
            reference_C = reference(row, 1.0)[0] if config.kl.coef else None
        result = row_loss(
            tokens_of(mini_batch, row), *policy(row, 1.0), reference_C, config,
            kl_coef=config.kl.coef, num_counted=mini_batch.num_counted,
        )  # fmt: skip
        result.loss.backward()
        total += float(result.loss)
    return total


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient_are_the_same_however_the_tokens_are_spread(
    models: tuple[Policy, Policy], variant: str
) -> None:
    config = variant_config(Path("m"), variant)
    policy, reference = models
    loss, gradient = learn(policy, reference, config, Spread())
    assert float(gradient.norm()) > 0, f"{variant}: there is no gradient"
    for spread in (
        Spread(max_tokens=24, is_reversed=True),
        Spread(max_tokens=48, num_ranks=2),
        Spread(max_tokens=30, num_ranks=3, is_reversed=True),
    ):
        other_loss, other_gradient = learn(policy, reference, config, spread)
        distance = float((other_gradient - gradient).norm() / gradient.norm())
        assert distance <= 1e-5, f"{spread}: the gradient is off by {distance:.2e}"
        assert other_loss == pytest.approx(loss, rel=1e-5, abs=1e-6), f"{spread}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_of_segments_is_the_same_in_whatever_rows_they_are(
    models: tuple[Policy, Policy], variant: str
) -> None:
    config = variant_config(Path("m"), variant)
    loss, gradient = learn(*models, config, Spread(is_cut=True))
    for spread in (Spread(max_tokens=24, is_cut=True), Spread(max_tokens=30, num_ranks=3, is_cut=True)):
        other_loss, other_gradient = learn(*models, config, spread)
        distance = float((other_gradient - gradient).norm() / gradient.norm())
        assert distance <= 1e-5, f"{spread}: the gradient is off by {distance:.2e}"
        assert other_loss == pytest.approx(loss, rel=1e-5, abs=1e-6), f"{spread}"


@pytest.mark.parametrize("variant", ["ppo_clip", "sequence mean", "sequence sum, empty ones count", "dr. grpo"])
def test_an_episode_weighs_the_same_in_one_segment_and_in_several(models: tuple[Policy, Policy], variant: str) -> None:
    config = variant_config(Path("m"), variant)
    loss, gradient = learn(*models, config, Spread())
    cut_loss, cut_gradient = learn(*models, config, Spread(max_tokens=60, num_ranks=2, is_cut=True))
    distance = float((cut_gradient - gradient).norm() / gradient.norm())
    assert distance <= 1e-5, f"the gradient is off by {distance:.2e}"
    assert cut_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_on_a_gpu_brings_its_tokens_there_and_leaves_nothing_behind(variant: str) -> None:
    """Tensors without data stand for those on a GPU: torch refuses to mix either with the CPU's."""
    gpu = torch.device("meta")
    config, groups = variant_config(Path("unused"), variant), varied_groups()
    tokens = LossTokens.of_groups(groups)
    survey = Survey(-torch.rand(len(tokens)), torch.rand(len(tokens)), tokens) if needs_survey(config) else None
    (mini_batch, *_) = plan_mini_batches(groups, survey, config)
    (row, *_), _ = pack_for_rank(mini_batch.groups, max_tokens=4096, rank=0, num_ranks=1)
    logprobs, entropies, reference = (torch.empty(len(row.targets_C), device=gpu) for _ in range(3))
    result = row_loss(
        tokens_of(mini_batch, row).to(gpu),
        logprobs.requires_grad_(),
        entropies.requires_grad_(),
        reference,
        config,
        kl_coef=0.1,
        num_counted=mini_batch.num_counted,
    )
    result.loss.backward()
    assert logprobs.grad is not None and logprobs.grad.device == gpu
    tensors = [value for value in vars(result).values() if isinstance(value, Tensor)]
    assert {tensor.device for tensor in tensors} == {gpu}
