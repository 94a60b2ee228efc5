"""The command of a model card for a machine without a GPU, as a reader of the card runs it: an export is served."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from services.coordinator.cli.export.card import model_card
from services.coordinator.store.run_record import RunRecord
from tests.support.configs import run_config
from tests.support.local_stack import free_port
from tests.support.plain_export import export_trained
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import block_until

START_S = 600.0


@pytest.mark.timeout(900)
def test_the_command_of_a_card_serves_the_export_on_a_cpu(tmp_path: Path) -> None:
    source, folder = make_tiny_model(tmp_path / "source"), tmp_path / "model"
    export_trained(source, folder)
    record = RunRecord("sums", tmp_path, policy_version=1, num_steps=1)
    config = run_config(str(source))
    (command,) = re.findall(r"^VLLM_CPU_KVCACHE_SPACE=.*$", model_card(record, config, 1), re.MULTILINE)
    port, log = free_port(), tmp_path / "server.log"
    with served(f"{command.replace('FOLDER', str(folder))} --port {port}", log) as server:
        answer = block_until(lambda: ask(port, str(folder), server, log), "an answer", timeout_s=START_S)
    assert answer["usage"]["completion_tokens"] == 8, answer


@contextmanager
def served(command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a line of a shell with this Python, and ends all its processes."""
    variable, _, words = command.partition(" python ")
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["sh", "-c", f"{variable} exec {shlex.quote(sys.executable)} {words}"], stdout=output, stderr=output
        )
        try:
            yield server
        finally:
            for process in [*psutil.Process(server.pid).children(recursive=True), server]:
                process.kill()
            server.wait()


def ask(port: int, model: str, server: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    """Returns the server's answer; nothing while it starts."""
    body = {"model": model, "messages": [{"role": "user", "content": "1 + 2 = ?"}], "max_tokens": 8, "ignore_eos": True}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except URLError as error:
        assert server.poll() is None, f"the server ended with {server.returncode}: {log.read_text()[-3000:]}"
        assert isinstance(error.reason, ConnectionRefusedError), error
        return {}
