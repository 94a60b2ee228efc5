"""Tests of reading a row as messages and labels, and of its name in messages."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from shoal.config.tables.data import SourceConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data.conversation import conversation_of
from shoal.data.files import read_dataset, read_files
from shoal.data.rows import Row, row_name
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
    with pytest.raises(InvalidArgument, match=r"d\.jsonl:1: .*'reward_model\.ground_truth'"):
        label(data_source="mine")


def test_each_of_several_verifiers_of_a_source_reads_the_whole_label() -> None:
    row = Row(0, "d.jsonl:1", {"messages": "1 + 1?", "ground_truth": ["2", "two"]})
    source = SourceConfig(path="d.jsonl", verifier=["math", "exact_string"])
    truths = conversation_of(row, source, ["math", "exact_string"], RewardConfig(weights={"math": 2})).ground_truths
    assert [(truth.verifier, truth.label, truth.weight) for truth in truths] == [
        ("math", ["2", "two"], 2.0),
        ("exact_string", ["2", "two"], 1.0),
    ]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("18.90", "18.90"),
        ("0.12345678901234567890", "0.12345678901234567890"),
        ("1.23456789012345678e5", "1.23456789012345678e5"),
        ("12345678901234567890", "12345678901234567890"),
        ("72.00", "72.00"),
        ("72.0", "72"),  # As programs write it.
        ("1e-05", "0.00001"),
        ("1E-5", "0.00001"),
        ("-2.5", "-2.5"),
        ("1e-400", "1e-400"),
        ("1e-99999999999999999999", "1e-99999999999999999999"),
    ],
)
def test_a_number_as_a_label_is_the_text_in_the_data(tmp_path: Path, written: str, text: str) -> None:
    line = (
        f'{{"messages": "?", "dataset": ["gsm8k", "gsm8k"], "ground_truth": [{written}, "1"], "a": {{"b": {written}}}}}'
    )
    (tmp_path / "rows.jsonl").write_text(f"{line}\n", encoding="utf-8")
    for column, verifier in (("ground_truth", None), ("a.b", "gsm8k")):
        source = SourceConfig(path=str(tmp_path / "rows.jsonl"), ground_truth_column=column, verifier=verifier)
        [row] = read_files(source).rows
        assert conversation_of(row, source, ["gsm8k"], RewardConfig()).ground_truths[0].label == text


def test_a_number_inside_an_object_is_a_double_where_that_is_all_it_says(tmp_path: Path) -> None:
    line = '{"messages": "?", "dataset": "gsm8k", "ground_truth": {"a": 18.90, "b": 0.12345678901234567890, "c": 1e-5}}'
    (tmp_path / "rows.jsonl").write_text(f"{line}\n", encoding="utf-8")
    [row] = read_files(SourceConfig(path=str(tmp_path / "rows.jsonl"))).rows
    [truth] = conversation_of(row, SourceConfig(path="-"), ["gsm8k"], RewardConfig()).ground_truths
    assert truth.label == {"a": 18.9, "b": "0.12345678901234567890", "c": 0.00001}
    assert type(truth.label["a"]) is float


@pytest.mark.parametrize(
    ("kind", "values", "labels"),
    [
        (pyarrow.float32(), [0.1, 18.9, 72.0], ["0.1", "18.9", "72"]),
        (pyarrow.float16(), [np.float16(0.1), np.float16(2048.0)], ["0.1", "2048"]),
        (pyarrow.float64(), [0.1, 0.30000000000000004], ["0.1", "0.30000000000000004"]),
        (pyarrow.decimal128(5, 2), [Decimal("18.90")], ["18.90"]),
        (pyarrow.list_(pyarrow.float32()), [[0.1, None, 0.2]], [["0.1", None, "0.2"]]),
        (pyarrow.struct([("x", pyarrow.float32())]), [{"x": 0.1}], [{"x": 0.1}]),
    ],
)
def test_a_narrow_number_of_a_table_is_the_shortest_text_that_it_is_stored_for(
    tmp_path: Path, kind: pyarrow.DataType, values: list[Any], labels: list[Any]
) -> None:
    columns = {"messages": ["?"] * len(values), "dataset": ["gsm8k"] * len(values)}
    table = pyarrow.table({**columns, "ground_truth": pyarrow.array(values, kind)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    for source in (SourceConfig(path=str(tmp_path / "rows.parquet")), SourceConfig(dataset=str(tmp_path))):
        rows = (read_files(source) if source.path else read_dataset(source)).rows
        found = [conversation_of(row, source, ["gsm8k"], RewardConfig()).ground_truths for row in rows]
        assert [truth.label for (truth,) in found] == labels, f"{source}"


@pytest.mark.parametrize(
    ("prompt_id", "name"),
    [
        ("sums.jsonl:6", "sums.jsonl row 7"),
        ("s3://bucket/a:b.parquet:0", "s3://bucket/a:b.parquet row 1"),
        ("chosen by a caller", "chosen by a caller"),
        ("caller:x", "caller:x"),
    ],
)
def test_messages_count_rows_from_one_and_prompt_ids_from_zero(prompt_id: str, name: str) -> None:
    assert row_name(prompt_id) == name
