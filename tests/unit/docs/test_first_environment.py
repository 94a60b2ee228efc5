"""The files of docs/environments.md work as they are printed there."""

import runpy
import subprocess
import sys
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
    question = environment.reset({}, 3)
    assert "31 times 2" in question and f"user: {question}" in PAGE
    assert isinstance(environment.step(Turn(1, "61")), str)
    assert environment.step(Turn(2, "62")) == Observation(reward=0.5, done=True)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_of_its_own_hands_calls_to_the_tools_and_judges_the_answer(folder: Path, is_async: bool) -> None:
    played = "shoal env play sums.py:Sums"
    shown = PAGE.partition(f"$ {played}\n")[2].partition("```")[0]
    lines = [line.removeprefix("> ") for line in shown.splitlines() if line.startswith("> ")]
    code = Path("sums.py").read_text()
    if is_async:
        code = code.replace("def step", "async def step").replace("return super().step", "return await super().step")
    Path("sums.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", "from services.coordinator.cli.app import main; main()", *played.split()[1:]],
        input="\n".join(lines), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    said = [line for line in shown.splitlines() if not line.startswith("> ")]
    assert [line.removeprefix("> ") for line in done.stdout.splitlines()] == said, done.stdout + done.stderr
