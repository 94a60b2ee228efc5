"""Records of a group's payloads. A record is a sequence of protobuf messages, each preceded by its length."""

import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import Message
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from services.coordinator.store.segments.series import Series
from shoal.rollout import Completion, Prompt, Rollout
from shoal.scores import Score
from shoal.v1 import learner_pb2, rollout_pb2
from shoal.wire import completion_to_wire, score_to_wire
from shoal.wire.arrays import float32_to_wire
from shoal.wire.episodes import episode_to_wire

MessageT = TypeVar("MessageT", bound=Message)


class PayloadKind(StrEnum):
    """A part of a group that the ledger keeps in a segment, because its size grows with the group's tokens."""

    PROMPT = "prompt"
    """One `Prompt` with the text."""
    TEXTS = "texts"
    """A `Completion` with index, text and episode for each completion."""
    SCORES = "scores"
    """A `Score` for each completion."""
    TOKENS = "tokens"
    """A `Completion` without text for each completion: tokens, log-probabilities, supports."""
    TOKEN_ADVANTAGES = "token_advantages"
    """A `TrainRollout` with index and token advantages for each completion that has them."""

    @property
    def series(self) -> Series:
        """The series of segments that has the payloads of this kind."""
        return Series.TOKENS if self in (PayloadKind.TOKENS, PayloadKind.TOKEN_ADVANTAGES) else Series.TEXT


def prompt_record(prompt: Prompt) -> bytes:
    """Makes the record of a prompt's text."""
    return _join([rollout_pb2.Prompt(text=prompt.text)])


def text_record(completions: Iterable[Completion]) -> bytes:
    """Makes the record of the completions' texts, and of the messages in their episodes."""
    return _join(
        rollout_pb2.Completion(
            sample_index=each.sample_index,
            text=each.text,
            episode=None if each.episode is None else episode_to_wire(each.episode, with_prompts=False),
        )
        for each in completions
    )


def token_record(completions: Iterable[Completion]) -> bytes:
    """Makes the record of the tokens, log-probabilities and supports, which the learner needs."""
    return _join(completion_to_wire(completion, with_text=False, with_words=False) for completion in completions)


def score_record(scores: Iterable[Score]) -> bytes:
    """Makes the record of the scores, with the details of the verifiers."""
    return _join(map(score_to_wire, scores))


def token_advantage_record(rollouts: Iterable[Rollout]) -> bytes:
    """Makes the record of the advantages of single tokens. The record is empty if no rollout has such advantages."""
    return _join(
        learner_pb2.TrainRollout(
            completion=rollout_pb2.Completion(sample_index=rollout.completion.sample_index),
            token_advantages=float32_to_wire(rollout.token_advantages),
        )
        for rollout in rollouts
        if rollout.token_advantages is not None
    )


def messages_of(record: bytes, kind: type[MessageT]) -> Sequence[MessageT]:
    """Reads the messages of a record."""
    stream, messages = io.BytesIO(record), []
    while (message := parse_length_prefixed(kind, stream)) is not None:
        messages.append(message)
    return messages


def _join(messages: Iterable[Message]) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        serialize_length_prefixed(message, stream)
    return stream.getvalue()
