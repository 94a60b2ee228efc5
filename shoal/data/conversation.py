"""One row read as a conversation with its ground truths."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.data import SourceConfig
from shoal.config.services import RewardConfig
from shoal.data.rows import Row
from shoal.errors import InvalidArgument
from shoal.rollout import ChatMessage, GroundTruth
from shoal.verifiers import UNLABELED_VERIFIERS

_MOST_EXACT = 2**53
"""A double holds every whole number up to it."""


@dataclass(frozen=True)
class Conversation:
    """What a row asks and what its answers are judged by."""

    where: str
    messages: tuple[ChatMessage, ...]
    """The model's answer comes next."""
    ground_truths: tuple[GroundTruth, ...]

    @property
    def asked(self) -> str:
        """The conversation without system messages, one "role: content" after the other."""
        asked = [message for message in self.messages if message.role != "system"]
        return "\n".join(f"{message.role}: {message.content}" for message in asked)


def conversation_of(
    row: Row, source: SourceConfig, known_verifiers: Collection[str] | None, reward: RewardConfig
) -> Conversation:
    """Reads a row by the columns that the source names.

    A last message of the assistant is the reference answer and is dropped. A system prompt of the source takes
    the place of the row's own.

    Raises `InvalidArgument` that says where the row is and what is wrong with it.
    """
    messages = messages_of(row, _column(row, source.messages_column), source.messages_column)
    if len(messages) > 1 and messages[-1].role == "assistant":
        messages = messages[:-1]
    if source.system_prompt is not None:
        messages = messages[1:] if messages[0].role == "system" else messages
        messages = (ChatMessage("system", source.system_prompt), *messages)
    return Conversation(row.where, messages, ground_truths_of(row, source, known_verifiers, reward))


def _column(row: Row, name: str) -> Any:
    """A row's value by column name; a name with dots reaches into columns that hold tables."""
    if name not in row.values and "." in name:
        outer, _, inner = name.partition(".")
        value = row.values.get(outer)
        for part in inner.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    if name not in row.values:
        raise InvalidArgument(f"{row.where}: there is no column {name!r}; the row has: {', '.join(row.values)}")
    return row.values[name]


def messages_of(row: Row, value: Any, column: str) -> tuple[ChatMessage, ...]:
    """What a column holds, a list of messages or one question, as messages. Raises `InvalidArgument`."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise InvalidArgument(f"{row.where}: {column} must be a question or a list of messages (found: {value!r:.80})")
    messages = []
    for message in value:
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise InvalidArgument(
                f"{row.where}: each of {column} needs a role and a content, both text (found: {message!r:.80})"
            )
        messages.append(ChatMessage(role, _unicode(row, content, column)))
    return tuple(messages)


def _unicode(row: Row, text: str, column: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{row.where}: {column} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
    return text


def ground_truths_of(
    row: Row, source: SourceConfig, known_verifiers: Collection[str] | None, reward: RewardConfig
) -> tuple[GroundTruth, ...]:
    """What a row's answers are judged by, with the names and weights that `reward` gives.

    A verifier that reads no label needs none.

    Raises `InvalidArgument` for a row without label or verifier, or one of an unknown verifier.
    """
    named = source.verifier if source.verifier is not None else _column(row, source.verifier_column)
    if isinstance(named, str):
        names = [named]
    elif isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        names = named
    else:
        raise InvalidArgument(
            f"{row.where}: {source.verifier_column} must be a verifier's name or a list of them (found: {named!r:.80})"
        )
    verifiers = [_verifier(row, name, known_verifiers, reward) for name in names]
    if UNLABELED_VERIFIERS.issuperset(verifiers) and row.values.get(source.ground_truth_column) is None:
        labels = [None] * len(verifiers)
    else:
        label = _column(row, source.ground_truth_column)
        labels = label if isinstance(named, list) and isinstance(label, list) else [label]
    if len(names) != len(labels):
        raise InvalidArgument(f"{row.where}: {len(names)} verifiers for {len(labels)} labels; one label is needed each")
    return tuple(
        GroundTruth(
            verifier,
            "" if item is None and verifier in UNLABELED_VERIFIERS else _label(row, item, source.ground_truth_column),
            source.weight * reward.weights.get(verifier, 1.0),
        )
        for verifier, item in zip(verifiers, labels, strict=True)
    )


def _verifier(row: Row, name: str, known_verifiers: Collection[str] | None, reward: RewardConfig) -> str:
    name = name.lower()
    name = reward.remap.get(name, name)
    if known_verifiers is not None and name not in known_verifiers:
        known = ", ".join(sorted(known_verifiers))
        raise InvalidArgument(
            f"{row.where}: no verifier is called {name!r}; known: {known}. Data set names that are no verifier are "
            "mapped with reward.remap, or with the source's `verifier`"
        )
    return name


def _label(row: Row, label: Any, column: str) -> Any:
    """The label as it may travel. A number that is an answer goes as text, as it was written, since those of a
    `google.protobuf.Value` are doubles; what stands in an object goes as it is, as far as a double holds it."""
    if label is None:
        raise InvalidArgument(f"{row.where}: {column} is null; a label is needed to judge answers by")
    if isinstance(label, str):
        return _unicode(row, label, column)
    if isinstance(label, bool):
        return label
    if isinstance(label, float) and not math.isfinite(label):
        raise InvalidArgument(f"{row.where}: {column} is {label}, which no answer can be compared with")
    if isinstance(label, float):
        return np.format_float_positional(label, trim="-")  # 72 and 0.00001, not 72.0 and 1e-05
    if isinstance(label, int):
        return str(label)
    if isinstance(label, list):
        return [None if item is None else _label(row, item, column) for item in label]
    if isinstance(label, Mapping):
        return {str(key): _value(row, item, column) for key, item in label.items()}
    raise InvalidArgument(f"{row.where}: {column} must be JSON (found: {type(label).__name__})")


def _value(row: Row, value: Any, column: str) -> Any:
    """A value in a label's object: 5 in {"maximum": 5} is a number for whoever reads the label, not the text "5"."""
    if isinstance(value, list):
        return [_value(row, item, column) for item in value]
    is_held = isinstance(value, float) or (isinstance(value, int) and abs(value) <= _MOST_EXACT)
    if value is None or (is_held and math.isfinite(value)):
        return value
    return _label(row, value, column)
