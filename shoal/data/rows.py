"""Rows: what every kind of source gives before it is made into prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.data import SourceConfig


@dataclass(frozen=True)
class Row:
    """One record of a source."""

    number: int
    """Place in the source, from 0; a prompt's id holds it."""
    where: str
    """For messages to people: "questions.jsonl:7"."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RowSource:
    """A source with its rows in their own order."""

    name: str
    """Same on every machine and in every run; the first half of a prompt's id."""
    rows: list[Row]


def wanted_columns(source: SourceConfig) -> list[str]:
    """The columns that prompts are made from."""
    columns = [source.messages_column, source.ground_truth_column]
    return columns if source.verifier is not None else [*columns, source.verifier_column]
