"""Groups of one prompt, built from the rewards of their completions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import DropReason, JudgedGroup, SettledGroup
from shoal.config import RunConfig
from shoal.rollout import Completion, FinishReason, Prompt, VersionSpan, WeightVersion
from shoal.scores import Score, ScoreOutcome, VerifierScore
from tests.support.configs import run_config

PROMPT = Prompt("p:0", np.array([1, 2], np.int32), "?", ())
NOW = WeightVersion(0, 7)
"""The version that every completion ends with."""


def group_config(**sections: object) -> RunConfig:
    """The configuration of a run whose advantages are differences unless a section changes that."""
    return run_config(**{"advantage": {"scale": "none"}} | sections)


def settled_group(
    order_number: int, rewards: Sequence[float | None], oldest: int = 7, drop_reason: DropReason | None = None
) -> SettledGroup:
    """A group whose completions earned these rewards; None stands for a verifier that failed.

    Each completion has two tokens. The first completion is cut off, the others stop.
    """
    completions = tuple(
        Completion(
            sample_index=index,
            token_ids=np.array([3, 4], np.int32),
            behavior_logprobs=np.array([-1, -1], np.float32),
            finish_reason=FinishReason.STOP if index else FinishReason.LENGTH,
            version_spans=(VersionSpan(WeightVersion(0, oldest), 0, 1), VersionSpan(NOW, 1, 2)),
            seed=0,
        )
        for index in range(len(rewards))
    )
    scores = []
    for index, reward in enumerate(rewards):
        outcome = ScoreOutcome.FAILED if reward is None else ScoreOutcome.SCORED
        scores.append(Score(index, outcome, reward or 0.0, (VerifierScore("v", outcome, reward or 0.0),)))
    return SettledGroup(
        order_number, f"g{order_number}", PROMPT, "", completions, tuple(scores), drop_reason=drop_reason
    )


def with_lengths(group: SettledGroup, num_tokens: Sequence[int]) -> SettledGroup:
    completions = [
        replace(
            completion,
            token_ids=np.arange(count, dtype=np.int32),
            behavior_logprobs=np.zeros(count, np.float32),
            version_spans=(VersionSpan(NOW, 0, count),),
        )
        for completion, count in zip(group.completions, num_tokens, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def judged(config: RunConfig, groups: Sequence[SettledGroup]) -> list[JudgedGroup]:
    return [judge_group(config, group) for group in groups]
