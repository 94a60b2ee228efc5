"""Conversations, each read from one row as messages with ground truths."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from shoal.config.tables.data import SourceConfig
from shoal.config.tables.reward import EVERY_OTHER_NAME, RewardConfig
from shoal.config.tables.verifiers import UNLABELED_VERIFIERS
from shoal.conversation import ChatMessage, words_of
from shoal.data.environments import environment_of, refuse_tools
from shoal.data.json_text import WrittenNumber
from shoal.data.messages import messages_of
from shoal.data.rows import (
    Row,
    column_of,
    is_empty,
    media_columns,
    optional_columns,
    refuse_media_column,
    unicode_of,
    wanted_columns,
)
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask, GroundTruth
from shoal.similar_names import similar_names

PASSTHROUGH = "passthrough"
"""The name by which open-instruct states that a row has no verifier, in data whose rewards come from an environment."""
_MAX_EXACT = 2**53
"""A double represents every whole number below this limit exactly."""


@dataclass(frozen=True)
class Conversation:
    """The messages of a row, and the labels of its answers."""

    where: str
    messages: tuple[ChatMessage, ...]
    """The messages before the model's answer."""
    ground_truths: tuple[GroundTruth, ...]
    environment: EnvironmentTask | None = None
    left_out: frozenset[str] = frozenset()
    """Fields about the messages, such as `timestamp`. Chat templates do not get these fields."""

    @property
    def question(self) -> str:
        """The messages without system messages, each as "role: content"."""
        messages = [message for message in self.messages if message.role != "system"]
        return "\n".join(f"{message.role}: {words_of(message)}" for message in messages)


def conversation_of(
    row: Row,
    source: SourceConfig,
    known_verifiers: Collection[str] | None,
    reward: RewardConfig,
    known_environments: Collection[str] = (),
) -> Conversation:
    """Reads a row by the columns that the source names. Raises `InvalidArgument`, which names the row and the fault.

    A final message of the assistant is the reference answer, and is left out. A system prompt of the source replaces
    the system prompt of the row.
    """
    for column in media_columns(row.values, {*wanted_columns(source), *optional_columns(source)}):
        if not is_empty(row.values[column]):
            refuse_media_column(row.where, column)
    column = source.messages_column
    messages, left_out = messages_of(row, column_of(row, column), column, has_answer=True)
    if source.system_prompt is not None:
        messages = messages[1:] if messages[0].role == "system" else messages
        messages = (ChatMessage("system", source.system_prompt), *messages)
    environment = environment_of(row, source, known_environments)
    if environment is None:
        refuse_tools(row, source.tools_column)
    truths: tuple[GroundTruth, ...] = ()
    if environment is None or not _rewards_alone(row, source):
        truths = ground_truths_of(row, source, known_verifiers, reward)
    return Conversation(row.where, messages, truths, environment, left_out)


def _rewards_alone(row: Row, source: SourceConfig) -> bool:
    """Returns whether the whole reward of a row with an environment comes from the environment."""
    named = source.verifier if source.verifier is not None else row.values.get(source.verifier_column)
    return not named or named in (PASSTHROUGH, [PASSTHROUGH])


def _optional(row: Row, name: str) -> Any:
    return column_of(row, name) if name in row.values or "." in name else None


def ground_truths_of(
    row: Row, source: SourceConfig, known_verifiers: Collection[str] | None, reward: RewardConfig
) -> tuple[GroundTruth, ...]:
    """Reads the verifiers and labels of a row, with the names and weights that `reward` gives. Raises `InvalidArgument`
    for a row without verifier or needed label, or with an unknown verifier."""
    named = source.verifier if source.verifier is not None else column_of(row, source.verifier_column)
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"{row.where}: {source.verifier_column} must be the name of a verifier or a list of names "
            f"(found: {named!r:.80})"
        )
    # The star replaces names in the data, not a verifier that the configuration chooses.
    other = reward.remap.get(EVERY_OTHER_NAME) if source.verifier is None else None
    verifiers = [_verifier(row, name, known_verifiers, reward, other) for name in names]
    labels: list[Any]
    if source.label_columns:
        labels = [{name: _optional(row, column) for name, column in source.label_columns.items()}] * len(verifiers)
    elif UNLABELED_VERIFIERS.issuperset(verifiers) and row.values.get(source.ground_truth_column) is None:
        labels = [None] * len(verifiers)
    else:
        label = column_of(row, source.ground_truth_column)
        labels = label if isinstance(named, list) and isinstance(label, list) else [label]
        if isinstance(source.verifier, list):
            labels = [label] * len(verifiers)
    if len(names) != len(labels):
        raise InvalidArgument(
            f"{row.where}: the row has {len(names)} verifiers for {len(labels)} labels; give one label for each "
            "verifier"
        )
    return tuple(
        GroundTruth(
            verifier,
            "" if item is None and verifier in UNLABELED_VERIFIERS else _label(row, item, source.ground_truth_column),
            source.weight * reward.weights.get(verifier, 1.0),
        )
        for verifier, item in zip(verifiers, labels, strict=True)
    )


def _verifier(
    row: Row, name: str, known_verifiers: Collection[str] | None, reward: RewardConfig, other: str | None
) -> str:
    """Returns the verifier that a name in the data means; `other` replaces names that `reward.remap` does not have."""
    name = reward.remap.get(name.lower(), other or name.lower())
    if known_verifiers is not None and name not in known_verifiers:
        raise InvalidArgument(
            f"{row.where}: {unknown_verifier(name, known_verifiers)}. Map the name of a data set to a verifier with "
            "reward.remap, set the source's `verifier`, or declare a function of your own under [reward.custom]"
        )
    return name


def unknown_verifier(name: str, known_verifiers: Collection[str]) -> str:
    """Describes an unknown name of a verifier, with the nearest known name."""
    within = sorted((known for known in known_verifiers if known in name), key=len)  # gsm8k in openai/gsm8k
    near = similar_names(name, known_verifiers, most=1) or within[-1:]
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"no verifier is called {name!r}{hint}; known: {', '.join(sorted(known_verifiers))}"


def _label(row: Row, label: Any, column: str) -> Any:
    """Converts a label to a value that fits a `google.protobuf.Value`, whose numbers are doubles.

    A number that is itself the label becomes its text in the data. A number inside an object stays a number if a double
    represents the number exactly.
    """
    if label is None:
        raise InvalidArgument(f"{row.where}: {column} is null; give each row a label, which answers are compared with")
    if isinstance(label, str):
        return unicode_of(row, label, column)
    if isinstance(label, bool):
        return label
    if isinstance(label, float) and not math.isfinite(label):
        raise InvalidArgument(f"{row.where}: {column} is {label}; no answer can be compared with it")
    if isinstance(label, float):
        return _text_of(label)
    if isinstance(label, int):
        return str(label)
    if isinstance(label, Decimal) and label.is_finite():
        return f"{label:f}"
    if isinstance(label, list):
        return [None if item is None else _label(row, item, column) for item in label]
    if isinstance(label, Mapping):
        return {str(key): _value(row, item, column) for key, item in label.items()}
    raise InvalidArgument(f"{row.where}: {column} must be JSON (found: {type(label).__name__})")


def _text_of(number: float) -> str:
    """Returns the text of a number as written in the data, with all digits, unless a program wrote 72.0 for 72 or 1e-05
    for 0.00001. An answer has no exponent either, so an exponent is written out if the double equals the text."""
    if isinstance(number, WrittenNumber) and not number.is_of_program:
        return number.text
    return np.format_float_positional(number, trim="-")


def _value(row: Row, value: Any, column: str) -> Any:
    """Converts a value inside a label's object: the 5 in {"maximum": 5} stays a number and does not become "5"."""
    if isinstance(value, list):
        return [_value(row, item, column) for item in value]
    is_exact = value.is_exact if isinstance(value, WrittenNumber) else isinstance(value, float)
    if value is None or (is_exact and math.isfinite(value)) or (isinstance(value, int) and abs(value) <= _MAX_EXACT):
        return float(value) if isinstance(value, WrittenNumber) else value
    return _label(row, value, column)
