"""The files of docs/tutorial.md work as they are printed there."""

import json
import runpy
from pathlib import Path

import pytest

from services.coordinator.run.checks.preflight import preflight
from shoal.config import load_config
from tests.support.pages import files_of, text_of, write_files

NAME = "tutorial.md"
PAGE = text_of(NAME)
FILES = files_of(NAME)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(NAME, tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    return tmp_path


def test_the_tutorial_has_its_files() -> None:
    assert {"make_data.py", "words.py", "words.toml", "answers.jsonl"} < set(FILES)


def test_the_data_and_the_configuration_of_the_tutorial_pass_the_preflight(folder: Path) -> None:
    inputs = preflight(load_config(folder / "words.toml"))
    assert len(inputs.prompts) == 150
    assert len(inputs.evaluation_prompts) == 40
    assert (folder / "train.jsonl").read_text().splitlines()[0] in PAGE


def test_the_reward_of_the_tutorial_gives_the_answers_the_scores_that_it_prints(folder: Path) -> None:
    score = runpy.run_path("words.py")["score"]
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [score(row["completion"], row["ground_truth"], row["finish_reason"]) for row in rows] == [
        1.0,
        0.5,
        0.0,
        None,
    ]
