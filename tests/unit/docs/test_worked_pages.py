"""The files of docs/tutorial.md, docs/environments.md and docs/agents.md work as they are printed there."""

import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.run.checks.preflight import preflight
from shoal.config import load_config
from shoal.environment import Observation, Policy, Turn
from tests.support.pages import text_of, write_files

TUTORIAL, ENVIRONMENTS, AGENTS = "tutorial.md", "environments.md", "agents.md"


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of a page and the data that they make."""
    write_files(request.param, tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    return tmp_path


def of_page(page: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("folder", [page], indirect=True)


@pytest.mark.parametrize(
    ("folder", "file", "sizes", "tasks"),
    [
        (TUTORIAL, "words.toml", (150, 40), set()),
        (ENVIRONMENTS, "doubling.toml", (80, 10), set(range(90, 100))),
        (AGENTS, "doubler.toml", (80, 10), set(range(90, 100))),
    ],
    indirect=["folder"],
)
def test_the_data_and_the_configuration_of_a_page_pass_the_preflight(
    folder: Path, file: str, sizes: tuple[int, int], tasks: set[int]
) -> None:
    inputs = preflight(load_config(folder / file))
    assert (len(inputs.prompts), len(inputs.evaluation_prompts)) == sizes
    played = [prompt.environment.task["number"] for prompt in inputs.evaluation_prompts if prompt.environment]
    assert set(played) == tasks and len(played) == len(tasks), played


@of_page(TUTORIAL)
def test_the_reward_of_the_tutorial_gives_the_answers_the_scores_that_it_prints(folder: Path) -> None:
    assert (folder / "train.jsonl").read_text().splitlines()[0] in text_of(TUTORIAL)
    score = runpy.run_path("words.py")["score"]
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    scores = [score(row["completion"], row["ground_truth"], row["finish_reason"]) for row in rows]
    assert scores == [1.0, 0.5, 0.0, None]


@of_page(ENVIRONMENTS)
def test_the_environment_pays_the_second_try_half(folder: Path) -> None:
    environment = runpy.run_path(str(folder / "doubling.py"))["Doubling"]()
    question = environment.reset({}, 3)
    assert "31 times 2" in question and f"user: {question}" in text_of(ENVIRONMENTS)
    assert isinstance(environment.step(Turn(1, "61")), str)
    assert environment.step(Turn(2, "62")) == Observation(reward=0.5, done=True)


@of_page(ENVIRONMENTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_of_its_own_hands_calls_to_the_tools_and_judges_the_answer(folder: Path, is_async: bool) -> None:
    played = "shoal env play sums.py:Sums"
    shown = text_of(ENVIRONMENTS).partition(f"$ {played}\n")[2].partition("```")[0]
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


class Scripted(BaseHTTPRequestHandler):
    """Answers calls with what a script says, in turn."""

    says: list[str]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        message = {"role": "assistant", "content": self.says[len(asked) // 2]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"id": "turn", "choices": [{"index": 0, "message": message}]}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Iterator[Policy]:
    handler = type("Handler", (Scripted,), {"says": request.getfixturevalue("says")})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Policy(f"http://127.0.0.1:{server.server_port}/v1", "key", 1024)
        server.shutdown()
        thread.join()


@of_page(AGENTS)
@pytest.mark.parametrize(("says", "reward"), [(["It is 42."], 1), (["41", "42"], 0.5), (["41", "43"], 0)])
async def test_the_agent_pays_the_second_try_half(folder: Path, policy: Policy, says: list[str], reward: float) -> None:
    pytest.importorskip("openai")
    agent = runpy.run_path(str(folder / "doubler.py"))["Doubler"]()
    assert await agent.run({"number": 21}, 0, policy) == reward, says
    assert agent.metrics == ({"right": True} if reward else {})
