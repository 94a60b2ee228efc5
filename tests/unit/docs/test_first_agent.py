"""The files of docs/agents.md work as they are printed there."""

import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.run.checks.preflight import preflight
from shoal.config import load_config
from shoal.environment import Policy
from tests.support.pages import text_of, write_files

NAME = "agents.md"
PAGE = text_of(NAME)


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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(NAME, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Iterator[Policy]:
    """Serves a policy that says the test's `says`."""
    handler = type("Handler", (Scripted,), {"says": request.getfixturevalue("says")})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Policy(f"http://127.0.0.1:{server.server_port}/v1", "key", 1024)
        server.shutdown()
        thread.join()


def test_the_data_and_the_configuration_pass_the_preflight(folder: Path) -> None:
    runpy.run_path("make_data.py")
    inputs = preflight(load_config(folder / "doubler.toml"))
    assert (len(inputs.prompts), len(inputs.evaluation_prompts)) == (80, 10)
    tasks = {prompt.environment.task["number"] for prompt in inputs.evaluation_prompts if prompt.environment}
    assert tasks == set(range(90, 100)), tasks


@pytest.mark.parametrize(("says", "reward"), [(["It is 42."], 1), (["41", "42"], 0.5), (["41", "43"], 0)])
async def test_the_agent_pays_the_second_try_half(folder: Path, policy: Policy, says: list[str], reward: float) -> None:
    pytest.importorskip("openai")
    agent = runpy.run_path(str(folder / "doubler.py"))["Doubler"]()
    assert await agent.run({"number": 21}, 0, policy) == reward, says
    assert agent.metrics == ({"right": True} if reward else {})
