"""Rows: the records of a source, before they become prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.data import SourceConfig


@dataclass(frozen=True)
class Row:
    """One record of a source."""

    number: int
    """Index in the source, from 0; part of the prompt id."""
    where: str
    """Location for messages: "questions.jsonl:7"."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RowSource:
    """A source with its rows, in their original order."""

    name: str
    """Name that is the same on every machine and in every run; the first half of a prompt id."""
    rows: list[Row]


def wanted_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts are made from."""
    columns = [source.messages_column, source.ground_truth_column]
    return columns if source.verifier is not None else [*columns, source.verifier_column]
