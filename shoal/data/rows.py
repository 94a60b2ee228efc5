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
    """Location for messages, counted from 1: "questions.jsonl:7", "questions.parquet row 7"."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RowSource:
    """A source with its rows, in their original order."""

    name: str
    """Name that is the same on every machine and in every run; the first half of a prompt id."""
    rows: list[Row]


def row_name(prompt_id: str) -> str:
    """Returns where a prompt comes from, for messages: "questions.jsonl:6" gives "questions.jsonl row 7".

    The index in an id counts from 0; rows count from 1, without blank lines.
    """
    source, _, index = prompt_id.rpartition(":")
    return f"{source} row {int(index) + 1}" if source and index.isdecimal() else prompt_id


def wanted_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts are made from."""
    if source.names_environments:  # The reward may be the environment's alone.
        return [source.messages_column, *([source.environment_column] if source.environment_column else [])]
    columns = [source.messages_column, source.ground_truth_column]
    return columns if source.verifier is not None else [*columns, source.verifier_column]


def optional_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts are made from where they are there."""
    if not source.names_environments:
        return []
    return [source.environment_task_column, source.ground_truth_column, source.verifier_column]
