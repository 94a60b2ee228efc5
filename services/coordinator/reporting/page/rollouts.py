"""The groups of a run as a report shows them."""

from collections.abc import Iterator
from typing import NamedTuple

from services.coordinator.rollout.groups import DropReason
from services.coordinator.store.rows import GroupState
from services.coordinator.store.tables.blocks import LOST
from shoal.quantities import counted
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2

STRIP_HEIGHT = 28
BAR_WIDTH, BAR_GAP = 7, 3
_MIN_BAR = 2.0
_REASONS: dict[str, str] = {
    DropReason.TIMEOUT: "it exceeded coordinator.sampling_timeout_s twice",
    DropReason.REFUSED: "a worker refused the prompt",
    DropReason.LOST: "sampling or scoring failed coordinator.max_group_losses times",
    DropReason.NOT_SCORED: "too few completions have a reward",
    DropReason.NO_SIGNAL: "all rewards are equal, so training on it would change nothing",
    DropReason.EQUAL_VERDICTS: 'its completions are equally correct, and grpo.filter_groups_by is "correct"',
    DropReason.TOO_HARD: "its share of correct completions is at most grpo.difficulty_low",
    DropReason.TOO_EASY: "its share of correct completions is at least grpo.difficulty_high",
    DropReason.MASKED: "every completion with a reward is masked",
    DropReason.SKIPPED_STEP: "its train step was skipped",
}
_FATES: dict[str, str] = {
    GroupState.ISSUED: "being sampled",
    GroupState.SAMPLED: "sampled, not scored yet",
    GroupState.SCORED: "scored, not trained on yet",
}
_FATES_AT_END: dict[str, str] = {
    GroupState.ISSUED: "the run ended before it was sampled",
    GroupState.SAMPLED: "sampled; the run ended before it was scored",
    GroupState.SCORED: "scored; the run ended before it was trained on",
}
_ENDINGS = {
    rollout_pb2.FINISH_REASON_STOP: "stopped",
    rollout_pb2.FINISH_REASON_LENGTH: "cut off",
    rollout_pb2.FINISH_REASON_ABORT: "aborted",
}


class Bar(NamedTuple):
    """The reward of one completion as a bar."""

    x: float
    y: float
    height: float
    kind: str
    """A class name."""


def fate_of(group: pb.RolloutGroup, *, has_ended: bool) -> str:
    """Describes the outcome of a group in words; `has_ended` says whether its run is over."""
    if group.state == GroupState.TRAINED:
        return f"trained on in step {group.train_step:,}"
    if group.state == GroupState.DROPPED:
        meaning = _REASONS.get(group.drop_reason)
        return f"dropped, {group.drop_reason}" + (f": {meaning}" if meaning else "")
    if group.state == LOST:
        return "lost: its segment cannot be read"
    return (_FATES_AT_END if has_ended else _FATES)[group.state]


def reward_of(rollout: pb.Rollout) -> float | None:
    """Returns the reward of a completion; None if it has none."""
    is_scored = rollout.HasField("score") and rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED
    return rollout.score.reward if is_scored else None


def outcome_of(score: rollout_pb2.Score | rollout_pb2.VerifierScore) -> str:
    """Names the outcome of scoring: scored, unscorable, failed."""
    return rollout_pb2.ScoreOutcome.Name(score.outcome).removeprefix("SCORE_OUTCOME_").lower()


def how_sampled(rollout: pb.Rollout) -> str:
    """Describes how a completion was sampled: "14 tokens, stopped, policy version 3"."""
    versions = {span.version.policy_version for span in rollout.version_spans} or {0}
    ends = sorted({min(versions), max(versions)})
    version = " to ".join(f"{end:,}" for end in ends)
    ending = _ENDINGS.get(rollout.finish_reason, "not finished")
    return f"{counted(rollout.num_tokens, 'token', ',')}, {ending}, policy version {version}"


def reward_bars(group: pb.RolloutGroup) -> Iterator[Bar]:
    """Draws the rewards of a group as bars between 0 and 1, or a wider range. A missing reward is an empty box."""
    rewards = [reward_of(rollout) for rollout in group.rollouts]
    known = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *known]), max([1.0, *known])
    for index, reward in enumerate(rewards):
        x = index * (BAR_WIDTH + BAR_GAP)
        if reward is None:
            yield Bar(x, 0, STRIP_HEIGHT, "none")
            continue
        height = max(_MIN_BAR, round((reward - low) / (high - low) * STRIP_HEIGHT, 1))
        yield Bar(x, STRIP_HEIGHT - height, height, "reward")
