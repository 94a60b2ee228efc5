"""A whole run on this machine: `shoal train` with real engines, observed and disturbed from outside."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from shoal.translate.shared.toml import toml_value
from tests.support.configs import extended
from tests.support.tiny_model import make_tiny_model

SHOAL = Path(sys.executable).with_name("shoal")
STARTING_S = 240
"""Longest time for four services with engines to be up, on two busy cores."""
_POLL_S = 0.2
"""Each poll goes through all processes of the machine."""


def buf_curl(*what: str) -> str:
    """Calls a service with buf, as users do without our client; returns the answer."""
    command = [str(SHOAL.with_name("buf")), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STARTING_S, check=False)
    assert done.returncode == 0, f"{what}: exit code {done.returncode}: {done.stderr}"
    return done.stdout


def run_of_call(address: str, method: str) -> dict[str, Any]:
    """The run in the answer of a method of the coordinator, whose request may be empty."""
    run: dict[str, Any] = json.loads(buf_curl("-d", "{}", f"http://{address}/shoal.v1.CoordinatorService/{method}"))[
        "run"
    ]
    return run


def free_port() -> int:
    """Returns a port for a server that starts later, or again.

    It is below those that the kernel gives to connections and to listeners without a port: one of them, of a test
    beside this one, could take it in the meantime.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(lowest_given, 20_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def write_guessing_game(path: Path, num_prompts: int = 64) -> Path:
    """Writes questions that a random model answers correctly now and then: the last number must be one digit."""
    rows = [
        {
            "messages": [{"role": "user", "content": f"{number}: say {number % 10}"}],
            "ground_truth": str(number % 10),
            "dataset": "gsm8k",
        }
        for number in range(num_prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_config(path: Path, sections: Mapping[str, Any]) -> Path:
    """Writes sections as TOML, a line each."""
    path.write_text("".join(f"{name} = {toml_value(values)}\n" for name, values in sections.items()))
    return path


def guessing_config(folder: Path, **sections: Any) -> dict[str, Any]:
    """Returns a configuration of the guessing game with a tiny model; keyword arguments add to its sections."""
    model = folder / "model"
    if not model.exists():
        make_tiny_model(model)
    config = {
        "model": {"path": str(model)},
        "data": {"sources": [{"path": str(write_guessing_game(folder / "data.jsonl"))}], "max_prompt_tokens": 64},
        "sampling": {"max_completion_tokens": 32},
        "grpo": {"group_size": 8, "groups_per_step": 4, "max_staleness": 0, "max_skipped_steps": 50},
        "generator": {"dtype": "float32", "cpu_kv_cache_gib": 0.25, "max_num_seqs": 32},
        "reward": {"num_processes": 2},
        "learner": {"zero_stage": 2, "compute_dtype": "float32", "learning_rate": 1e-3, "pack_tokens": 1024},
        "checkpoint": {"every_steps": 5},
        "weights": {"timeout_s": 60.0, "ready_timeout_s": 20.0},
        "run": {"num_steps": 16},
    }
    return extended(config, sections)


class LocalStack:
    def __init__(self, data_dir: Path, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """Begins the run `name`; with --resume among the arguments it goes on with a run."""
        named = () if "--resume" in arguments else ("--name", name)
        self.folder = data_dir / name
        data_dir.mkdir(parents=True, exist_ok=True)
        self.output = data_dir / f"{name}.out"
        with self.output.open("a") as output:
            self.process = subprocess.Popen(
                [str(SHOAL), "train", "--data-dir", str(data_dir), *arguments, *named],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )
        self._mine = psutil.Process(self.process.pid)
        self._seen: dict[int, psutil.Process] = {}
        self._events: list[dict[str, Any]] = []
        self._num_read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def children(self, *words: str) -> list[psutil.Process]:
        """Returns the living processes of the run whose command line contains all the words, oldest first."""
        found = []
        for process in self._mine.children(recursive=True) if self._mine.is_running() else []:
            try:
                line = " ".join(process.cmdline())
                self._seen[process.pid] = process
                if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def services(self, kind: str) -> list[psutil.Process]:
        """Returns the processes that offer a service, without their children."""
        return [
            process
            for process in self.children(f"services.{kind}", "--coordinator")
            if "--rank" not in process.cmdline()
        ]

    def left_over(self) -> list[psutil.Process]:
        """Returns the processes of the run that are alive, among all that were ever seen."""
        return [p for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def events(self) -> list[dict[str, Any]]:
        """Returns the events so far; reads what is new, since polls are many."""
        path = self.folder / "events.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._num_read)
                whole = file.read().rpartition(b"\n")[0]
            self._num_read += len(whole) + bool(whole)
            self._events += map(json.loads, whole.splitlines())
        return self._events

    def of_kind(self, kind: str, after: int = 0) -> list[dict[str, Any]]:
        """Returns the events of a kind so far, behind a sequence number."""
        return [event for event in self.events() if event["kind"] == kind and event["sequence"] > after]

    def metrics(self) -> list[dict[str, float]]:
        return [row for row in _json_lines(self.folder / "metrics.jsonl") if "time/step" in row]

    def until(self, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Waits for the first event that meets a condition."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.children()
            for event in self.events():
                if condition(event):
                    return event
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended before {what}:\n{self.tail()}")
            time.sleep(_POLL_S)
        raise AssertionError(f"not within {timeout_s} s: {what}\n{self.tail()}")

    def until_step(self, step: int, timeout_s: float = STARTING_S) -> None:
        self.until(f"step {step}", lambda e: e["kind"] == "step" and e["attributes"]["step"] >= step, timeout_s)

    def wait(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self.children()
            if time.monotonic() > deadline:
                raise AssertionError(f"still running after {timeout_s} s:\n{self.tail()}")
            time.sleep(_POLL_S)
        return self.process.returncode

    def update(self, *settings: str) -> None:
        """Changes live fields of the run, each given as "section.field=value"."""
        options = [word for setting in settings for word in ("--set", setting)]
        command = [str(SHOAL), "run", "update", *options, "--coordinator", self.coordinator_address()]
        subprocess.run(command, check=True, capture_output=True, timeout=STARTING_S)

    def coordinator_address(self) -> str:
        found = re.search(r"--coordinator (\S+)", self.output.read_text())
        assert found, self.tail()
        return found[1]

    def tail(self) -> str:
        return self.output.read_text()[-6000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.left_over():
            process.kill()


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return  # A line that is being written.
