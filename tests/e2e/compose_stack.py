"""The services of deploy/compose.yaml, run as a user would, in a compose project of the test's own."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.local_stack import SHOAL
from tests.support.repository import ROOT

FOLDER = ROOT / "deploy"
PATIENCE_S = 300
"""Longest wait for something that takes seconds on an idle machine."""


def find_compose() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    return None


def why_not() -> str | None:
    """Why containers cannot be run here; None when they can."""
    if shutil.which("docker") is None or find_compose() is None:
        return "docker with compose is not installed"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        return "no docker daemon answers"
    return None


class ComposeStack:
    """A compose project; `remove` deletes everything that it makes."""

    def __init__(self, project: str, port: int, certificates: Path | None = None) -> None:
        """With a folder of `shoal certs`, adds compose.tls.yaml; the test is the operator."""
        command = find_compose()
        assert command is not None
        self._port = port
        self._certificates = certificates
        self._command = [*command, "--project-name", project, "--file", "compose.yaml"]
        self._environment = os.environ | {"COMPOSE_PROFILES": "cpu", "SHOAL_PORT": str(port)}
        if certificates is not None:
            self._command += ["--file", "compose.tls.yaml"]
            self._environment["SHOAL_CERTS"] = str(certificates)

    def run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=FOLDER,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"compose {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def shoal(self, *arguments: str) -> Any:
        """Runs `shoal`, without TLS in the coordinator's container; returns its JSON, or None without an answer."""
        if self._certificates is None:
            text = self.run("exec", "-T", "coordinator", "shoal", *arguments, "--output", "json", check=False)
        else:
            command = [str(SHOAL), "--tls-dir", str(self._certificates / "operator"), *arguments, "--output", "json"]
            command += ["--coordinator", f"localhost:{self._port}"]
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return json.loads(text) if text else None

    def workers(self) -> list[str]:
        known = self.shoal("workers") or {}
        return sorted(worker["kind"].removeprefix("WORKER_KIND_") for worker in known.get("workers", ()))

    def events(self, run: str) -> list[dict[str, Any]]:
        text = self.run("exec", "-T", "coordinator", "cat", f"/data/{run}/events.jsonl", check=False)
        # The last line may be half written.
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def steps(self, run: str) -> int:
        return sum(event["kind"] == "step" for event in self.events(run))

    def containers(self) -> Iterator[dict[str, Any]]:
        ids = (
            self.run("ps", "--all", "--quiet").split() if self._command[0] == "docker" else self.run("ps", "-q").split()
        )
        yield from json.loads(subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout)

    def exit_codes(self) -> dict[str, int]:
        return {
            container["Config"]["Labels"]["com.docker.compose.service"]: container["State"]["ExitCode"]
            for container in self.containers()
            if container["State"]["Status"] == "exited"
        }

    def remove(self) -> None:
        """Ends and deletes everything of the project, volumes included; images stay."""
        self.run("down", "--volumes", "--remove-orphans", check=False)


def wait_until(is_so: Callable[[], bool], what: str, at_most_s: float = PATIENCE_S) -> float:
    """Polls every few seconds, since polling takes CPU from the services; returns the seconds waited."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + at_most_s, f"{what}: not within {at_most_s:.0f} s"
        time.sleep(5)
    return time.monotonic() - began
