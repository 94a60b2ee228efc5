"""Recorded-looking batches for the tests of the learner."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shoal.arrays import Float32Array
from shoal.conversation import ChatMessage
from shoal.rollout import (
    Completion,
    Episode,
    EpisodeSegment,
    EpisodeTurn,
    FinishReason,
    Rollout,
    Support,
    TrainBatch,
    TrainGroup,
    VersionSpan,
    WeightVersion,
)
from shoal.scores import ScoreOutcome

START = WeightVersion(attempt=0, policy_version=0)


def make_group(
    group_id: str,
    *,
    num_prompt_tokens: int,
    completion_lengths: Sequence[int],
    rng: np.random.Generator,
    vocab_size: int = 256,
) -> TrainGroup:
    """A group of random tokens and advantages, with plausible log-probabilities."""
    rollouts = []
    for index, length in enumerate(completion_lengths):
        completion = Completion(
            sample_index=index,
            token_ids=rng.integers(0, vocab_size, size=length).astype(np.int32),
            behavior_logprobs=(rng.normal(size=length) / 5 - np.log(vocab_size)).astype(np.float32),
            finish_reason=FinishReason.STOP,
            version_spans=(VersionSpan(START, 0, length),),
            seed=index,
        )
        rollouts.append(Rollout(completion, advantage=float(rng.normal())))
    prompt = rng.integers(0, vocab_size, size=num_prompt_tokens).astype(np.int32)
    return TrainGroup(group_id, prompt, tuple(rollouts))


def make_groups(num_groups: int = 4, group_size: int = 4, *, seed: int = 0) -> tuple[TrainGroup, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        make_group(
            f"g{number}",
            num_prompt_tokens=int(rng.integers(3, 20)),
            completion_lengths=[int(length) for length in rng.integers(1, 16, size=group_size)],
            rng=rng,
        )
        for number in range(num_groups)
    )


def with_supports(groups: Sequence[TrainGroup], *, vocab_size: int = 256, seed: int = 0) -> tuple[TrainGroup, ...]:
    """The groups with a support of 1 to 6 tokens for each token."""
    rng = np.random.default_rng(seed)

    def supported(rollout: Rollout) -> Rollout:
        completion = rollout.completion
        counts = rng.integers(1, 7, size=completion.num_tokens).astype(np.int32)
        rows = [
            [token, *rng.choice(np.delete(np.arange(vocab_size), token), size=count - 1, replace=False)]
            for token, count in zip(completion.token_ids, counts, strict=True)
        ]
        support = Support(np.concatenate([np.empty(0), *rows]).astype(np.int32), counts)
        return replace(rollout, completion=replace(completion, support=support))

    return tuple(replace(group, rollouts=tuple(map(supported, group.rollouts))) for group in groups)


def make_batch(
    train_step_id: str = "step-0", version: WeightVersion = START, *, groups: Sequence[TrainGroup] | None = None
) -> TrainBatch:
    return TrainBatch(train_step_id, version, 1.0, tuple(make_groups() if groups is None else groups))


def with_behavior(group: TrainGroup, values: float | Float32Array) -> TrainGroup:
    """The group with other behavior log-probabilities in its first rollout."""
    first, *others = group.rollouts
    logprobs = np.broadcast_to(np.asarray(values, dtype=np.float32), first.completion.token_ids.shape)
    completion = Completion(**{**vars(first.completion), "behavior_logprobs": logprobs})
    changed = Rollout(completion, advantage=-1.0)
    return TrainGroup(group.group_id, group.prompt_token_ids, (changed, *others), group.traceparent)


def with_segments(group: TrainGroup, *, num_prompt_tokens: Sequence[int], seed: int = 0) -> TrainGroup:
    """The group with its first completion cut into segments of about the same length, behind prompts so long."""
    rng = np.random.default_rng(seed)
    first, *others = group.rollouts
    ends = np.linspace(0, first.completion.num_tokens, len(num_prompt_tokens) + 1).round().astype(int).tolist()
    segments = tuple(
        EpisodeSegment(rng.integers(0, 256, size=length).astype(np.int32), start, end)
        for length, (start, end) in zip(num_prompt_tokens, pairwise(ends), strict=True)
    )
    turns = tuple(
        EpisodeTurn(each.start, each.end, ChatMessage("assistant", "-"), FinishReason.STOP, seed=0) for each in segments
    )
    episode = Episode(turns, "done", False, ScoreOutcome.SCORED, segments=segments)
    cut = replace(first, completion=replace(first.completion, episode=episode))
    return replace(group, rollouts=(cut, *others))
