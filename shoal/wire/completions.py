"""Completions, and the weight versions that sampled them, as messages."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from shoal.rollout import Completion, VersionSpan, WeightVersion
from shoal.token_run import TokenRun
from shoal.v1 import generator_pb2, rollout_pb2
from shoal.wire.arrays import float32_from_wire, float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.episodes import episode_from_wire, episode_to_wire
from shoal.wire.fields import invalid
from shoal.wire.finish_reasons import finish_reason_from_wire, finish_reason_to_wire
from shoal.wire.supports import support_from_wire


def version_to_wire(version: WeightVersion) -> rollout_pb2.WeightVersion:
    return rollout_pb2.WeightVersion(attempt=version.attempt, policy_version=version.policy_version)


def version_from_wire(message: rollout_pb2.WeightVersion) -> WeightVersion:
    return _version(message.attempt, message.policy_version)


@lru_cache(maxsize=64)
def _version(attempt: int, policy_version: int) -> WeightVersion:
    # The completions of a step have few versions, and share them.
    return WeightVersion(attempt, policy_version)


def spans_to_wire(spans: Iterable[VersionSpan]) -> list[rollout_pb2.VersionSpan]:
    return [
        rollout_pb2.VersionSpan(version=version_to_wire(span.version), start=span.start, end=span.end) for span in spans
    ]


def completion_to_wire(
    completion: Completion, *, with_text: bool = True, with_words: bool = True, with_prompts: bool = True
) -> rollout_pb2.Completion:
    """Makes the message of a completion. The flags leave out the text, or parts of the episode."""
    mask, support, episode = completion.loss_mask, completion.support, completion.episode
    return rollout_pb2.Completion(
        sample_index=completion.sample_index,
        token_ids=int32_to_wire(completion.token_ids),
        behavior_logprobs=float32_to_wire(completion.behavior_logprobs),
        loss_mask=b"" if mask is None else np.ascontiguousarray(mask, dtype=np.uint8).tobytes(),
        finish_reason=finish_reason_to_wire(completion.finish_reason),
        version_spans=spans_to_wire(completion.version_spans),
        text=completion.text if with_text else "",
        seed=completion.seed,
        support_token_ids=b"" if support is None else int32_to_wire(support.token_ids),
        support_counts=b"" if support is None else int32_to_wire(support.counts),
        episode=None if episode is None else episode_to_wire(episode, with_words=with_words, with_prompts=with_prompts),
    )


def completion_from_wire(message: rollout_pb2.Completion, earlier_support: bytes = b"") -> Completion:
    """Reads a completion. `earlier_support` is the part of its `support_token_ids` from earlier messages."""
    run = run_from_wire(message, "completion", earlier_support)
    if message.loss_mask and len(message.loss_mask) != run.num_tokens:
        raise invalid("completion.loss_mask", f"has {len(message.loss_mask)} values for {run.num_tokens} tokens")
    return Completion(
        sample_index=message.sample_index,
        token_ids=run.token_ids,
        behavior_logprobs=run.logprobs,
        loss_mask=np.frombuffer(message.loss_mask, dtype=np.uint8).astype(bool) if message.loss_mask else None,
        finish_reason=finish_reason_from_wire(message.finish_reason),
        version_spans=run.version_spans,
        text=message.text,
        seed=message.seed,
        support=run.support,
        episode=episode_from_wire(message.episode, run.num_tokens) if message.HasField("episode") else None,
    )


def run_from_wire(
    message: rollout_pb2.Completion | generator_pb2.CompletionPart, field: str, earlier_support: bytes = b""
) -> TokenRun:
    """Reads the tokens of a completion, or of a part of it, with the values of each token.

    Raises `InvalidArgument` unless each sampled token has a weight version. Outside of episodes all tokens are sampled.
    """
    token_ids = int32_from_wire(message.token_ids, f"{field}.token_ids")
    logprobs = float32_from_wire(message.behavior_logprobs, f"{field}.behavior_logprobs")
    if len(logprobs) != len(token_ids):
        raise invalid(f"{field}.behavior_logprobs", f"has {len(logprobs)} values for {len(token_ids)} tokens")
    sampled = [(0, len(token_ids))]
    if isinstance(message, rollout_pb2.Completion) and message.HasField("episode"):
        sampled = [(turn.start, turn.end) for turn in message.episode.turns]
    spans = tuple(
        [VersionSpan(version_from_wire(span.version), span.start, span.end) for span in message.version_spans]
    )
    _check_spans(spans, sampled, f"{field}.version_spans")
    support = None
    if message.support_counts or message.support_token_ids or earlier_support:
        ids = earlier_support + message.support_token_ids
        support = support_from_wire(ids, message.support_counts, token_ids, f"{field}.support")
    return TokenRun(token_ids, logprobs, spans, support)


def _check_spans(spans: Iterable[VersionSpan], sampled: list[tuple[int, int]], field: str) -> None:
    """Raises `InvalidArgument` unless the spans cover exactly the sampled ranges of tokens, in order."""
    covered = [(span.start, span.end) for span in spans]
    if covered != sampled and (covered := _merged(covered)) != (wanted := _merged(sampled)):
        raise invalid(field, f"must cover each sampled token once and in order (expected: {wanted}, given: {covered})")


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins ranges that follow each other, and drops empty ranges."""
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and merged[-1][1] == start <= end:
            merged[-1] = (merged[-1][0], end)
        elif start != end:
            merged.append((start, end))
    return merged
