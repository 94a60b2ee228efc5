"""Tests of reading a row as messages and labels."""

from typing import Any

import pytest

from shoal.config.data import SourceConfig
from shoal.config.services import RewardConfig
from shoal.data.conversation import conversation_of
from shoal.data.rows import Row
from shoal.errors import InvalidArgument

COLUMNS = {"data_source": "data_source", "ground_truth": "reward_model.ground_truth", "extra_info": "extra_info"}


def label(**values: Any) -> Any:
    source = SourceConfig(path="d.jsonl", verifier="compute_score", label_columns=COLUMNS)
    row = Row(0, "d.jsonl:1", {"messages": "1 + 1?", **values})
    (truth,) = conversation_of(row, source, ["compute_score"], RewardConfig()).ground_truths
    return truth.label


def test_columns_make_up_a_label() -> None:
    row = {"data_source": "mine", "reward_model": {"ground_truth": "2", "style": "rule"}, "extra_info": {"index": 7}}
    assert label(**row) == {"data_source": "mine", "ground_truth": "2", "extra_info": {"index": 7}}


def test_a_column_that_a_row_does_not_have_is_null_unless_it_is_part_of_another() -> None:
    assert label(reward_model={"ground_truth": "2"})["extra_info"] is None
    with pytest.raises(InvalidArgument, match=r"d\.jsonl:1: there is no column 'reward_model\.ground_truth'"):
        label(data_source="mine")


def test_each_of_several_verifiers_of_a_source_reads_the_whole_label() -> None:
    row = Row(0, "d.jsonl:1", {"messages": "1 + 1?", "ground_truth": ["2", "two"]})
    source = SourceConfig(path="d.jsonl", verifier=["math", "exact_string"])
    truths = conversation_of(row, source, ["math", "exact_string"], RewardConfig(weights={"math": 2})).ground_truths
    assert [(truth.verifier, truth.label, truth.weight) for truth in truths] == [
        ("math", ["2", "two"], 2.0),
        ("exact_string", ["2", "two"], 1.0),
    ]
