"""The groups between sampling and training: first settled, then judged. Also the rewards at single tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from shoal.grpo.advantage import RewardGroup
from shoal.rollout import Completion, Prompt
from shoal.scores import Score, ScoreOutcome


@dataclass(frozen=True)
class TokenReward:
    """A reward at one token of a completion."""

    token: int
    """Index of the last token of the step."""
    value: float


class DropReason(StrEnum):
    """The reason why a group is not trained on, as named in the ledger, events and metrics."""

    TIMEOUT = "timeout"
    """The group exceeded `coordinator.sampling_timeout_s` twice."""
    REFUSED = "refused"
    """A worker refused the prompt as invalid."""
    LOST = "lost"
    """Sampling or scoring of the group failed `coordinator.max_group_losses` times."""
    NOT_SCORED = "not_scored"
    """Too few completions have a reward, or the greedy baseline has none."""
    NO_SIGNAL = "no_signal"
    """Training on the group would change nothing: for most baselines, all rewards are equal."""
    EQUAL_VERDICTS = "equal_verdicts"
    """The group's completions are equally correct, and `grpo.filter_groups_by` is "correct"."""
    TOO_HARD = "too_hard"
    """The group's share of correct completions is at most `grpo.difficulty_low`."""
    TOO_EASY = "too_easy"
    """The group's share of correct completions is at least `grpo.difficulty_high`."""
    MASKED = "masked"
    """Masks hide every completion that has a reward."""
    SKIPPED_STEP = "skipped_step"
    """The group's train step was not applied: no group was left, filters rejected every token, or a number was not
    finite."""


@dataclass(frozen=True)
class SettledGroup:
    """A group that is scored, or was dropped before scoring."""

    order_number: int
    group_id: str
    prompt: Prompt
    traceparent: str
    completions: tuple[Completion, ...] = ()
    scores: tuple[Score, ...] = ()
    greedy_score: Score | None = None
    """The score of the prompt's greedy completion, if `advantage.baseline` asks for it."""
    step_rewards: tuple[tuple[TokenReward, ...], ...] = ()
    """The rewards of each completion's steps, if `advantage.step_rewards` asks for them."""
    drop_reason: DropReason | None = None
    """TIMEOUT, REFUSED or LOST if the group was dropped during sampling or scoring."""
    position: int = 0
    """Index of the prompt in the data's endless order."""


@dataclass(frozen=True)
class JudgedGroup:
    """A settled group with all consequences of its scores; see `services.coordinator.rollout.filtering`."""

    settled: SettledGroup
    rewards: RewardGroup
    max_reward: float
    """The reward, before length terms, of a completion that every verifier calls correct and whose format is right."""
    correct_share: float | None
    """The share of correct completions among the scored completions; None if nothing judges correctness."""
    verdicts_differ: bool | None
    """Whether verdicts on correctness differ; None without verdicts, and for fewer than two scored completions."""
    drop_reason: DropReason | None
    """The reason why the group is dropped; None for a group that is trained on."""
    trained_indices: tuple[int, ...]
    """Indices of the completions that are trained on; empty for a dropped group."""

    @property
    def is_trained(self) -> bool:
        """Whether the group has no drop reason."""
        return self.drop_reason is None

    @property
    def learns_from_shaping_alone(self) -> bool:
        """Whether a group of wrong completions is trained on only because other parts of its rewards differ."""
        rewards = {reward for reward in self.rewards.rewards if reward is not None}
        return self.is_trained and self.correct_share == 0 and self.verdicts_differ is False and len(rewards) > 1

    @property
    def order_number(self) -> int:
        """The group's number in the order of issue."""
        return self.settled.order_number


def counted_tokens(completion: Completion) -> npt.NDArray[np.bool_]:
    """Returns a mask [T], True for tokens that count in the loss."""
    return np.ones(completion.num_tokens, dtype=bool) if completion.loss_mask is None else completion.loss_mask


def num_counted_tokens(completion: Completion) -> int:
    """Returns the length of a completion for terms that depend on length, without the tokens of the environment."""
    return int(counted_tokens(completion).sum())


def token_rewards(
    prompt: Prompt, completion: Completion, score: Score, text_of: Callable[[list[int]], str]
) -> tuple[TokenReward, ...]:
    """Returns the weighted scores of the steps, at the tokens that complete the steps.

    `text_of` decodes tokens to the text that verifiers see. For an episode, this is the last turn. A step beyond the
    text ends with the last token.
    """
    turns = () if completion.episode is None else completion.episode.turns_in_time
    first, end = (turns[-1].start, turns[-1].end) if turns else (0, completion.num_tokens)
    token_ids = completion.token_ids[first:end].tolist()
    if not token_ids:
        return ()
    return tuple(
        TokenReward(first + _last_token(token_ids, step.end_char, text_of), truth.weight * step.value)
        for truth, part in zip(prompt.ground_truths, score.verifier_scores, strict=True)
        for step in part.step_scores
    )


def turn_rewards(completion: Completion) -> tuple[TokenReward, ...]:
    """Returns the rewards of an episode's turns, each at the last token that the policy sampled in the turn."""
    if completion.episode is None or completion.episode.outcome is not ScoreOutcome.SCORED:
        return ()
    turns = completion.episode.turns
    return tuple(
        TokenReward(turn.end - 1, turn.reward) for turn in turns if turn.reward is not None and turn.end > turn.start
    )


def _last_token(token_ids: list[int], end_char: int, text_of: Callable[[list[int]], str]) -> int:
    """Bisects for the first token up to which the text is long enough; each halving decodes once."""
    low, high = 0, len(token_ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(text_of(token_ids[: middle + 1])) >= end_char:
            high = middle
        else:
            low = middle + 1
    return low
