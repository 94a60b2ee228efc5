"""Tests of choosing the rows of a source, by label and over several files."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.config.tables.data import DataConfig, SourceConfig
from shoal.config.tables.model import ModelConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data import PromptSet, load_prompts
from shoal.errors import InvalidArgument
from tests.support.tiny_model import make_tokenizer


def _load(*sources: SourceConfig) -> PromptSet:
    return load_prompts(
        sources,
        model=ModelConfig(path="unused"),
        data=DataConfig(sources=list(sources)),
        seed=0,
        reward=RewardConfig(remap={"sums": "math", "words": "exact_string"}),
        known_verifiers=("math", "exact_string"),
        tokenizer=make_tokenizer(),
    )


def _write(path: Path, tags: Sequence[str]) -> str:
    rows = [{"messages": f"{path.stem} {n}?", "ground_truth": "4", "tag": tag} for n, tag in enumerate(tags)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _source(path: str | list[str], *labels: str, count: int | None = None) -> SourceConfig:
    return SourceConfig(path=path, labels=list(labels), verifier_column="tag", count=count)


def test_several_files_are_read_as_one_and_their_rows_keep_apart(tmp_path: Path) -> None:
    paths = [_write(tmp_path / "a.jsonl", ["sums", "words"]), _write(tmp_path / "b.jsonl", ["sums"])]
    prompts = _load(_source(paths)).prompts
    assert [prompt.messages[0].content for prompt in prompts] == ["a 0?", "a 1?", "b 0?"]
    assert len({prompt.prompt_id for prompt in prompts}) == 3


def test_the_labels_of_each_source_divide_files_into_shares(tmp_path: Path) -> None:
    paths = [_write(tmp_path / "a.jsonl", ["Sums", "words"] * 4), _write(tmp_path / "b.jsonl", ["words"] * 3)]
    prompts = _load(_source(paths, "sums", count=6), _source(paths, "WORDS", count=2)).prompts
    assert Counter(prompt.ground_truths[0].verifier for prompt in prompts) == {"math": 6, "exact_string": 2}
    ids = {prompt.prompt_id for prompt in prompts}
    assert len(ids) == 4 + 2, "six prompts of four rows repeat two of them"


def test_labels_that_no_row_has_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", ["sums", "words"])
    with pytest.raises(InvalidArgument, match=r" math .* sums, words"):
        _load(_source(path, "math"))
