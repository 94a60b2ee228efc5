"""The files of docs/environments.md work as they are printed there."""

import runpy
from pathlib import Path

import pytest

from services.coordinator.run.checks.preflight import preflight
from shoal.config import load_config
from shoal.environment import Observation, Turn
from tests.support.pages import text_of, write_files

NAME = "environments.md"
PAGE = text_of(NAME)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(NAME, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_data_and_the_configuration_pass_the_preflight(folder: Path) -> None:
    runpy.run_path("make_data.py")
    inputs = preflight(load_config(folder / "doubling.toml"))
    assert (len(inputs.prompts), len(inputs.evaluation_prompts)) == (80, 10)
    assert all(prompt.environment is not None for prompt in inputs.evaluation_prompts)
    tasks = {prompt.environment.task["number"] for prompt in inputs.evaluation_prompts if prompt.environment}
    assert tasks == set(range(90, 100)), tasks


def test_the_environment_pays_the_second_try_half(folder: Path) -> None:
    environment = runpy.run_path(str(folder / "doubling.py"))["Doubling"]()
    assert environment.reset({}, 3) == "What is 31 times 2?" and "user: What is 31 times 2?" in PAGE
    assert environment.step(Turn(1, "61")) == "That is wrong. Try again."
    assert environment.step(Turn(2, "62")) == Observation(reward=0.5, done=True)
