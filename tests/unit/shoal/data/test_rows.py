"""Rows as messages name them."""

import pytest

from shoal.data.rows import row_name


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
