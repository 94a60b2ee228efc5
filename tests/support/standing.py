"""Services that run on their own, as on a cluster: a coordinator and workers at fixed ports."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.local_stack import free_port
from tests.support.waiting import block_until

CLI = (sys.executable, "-c", "from services.coordinator.cli import main; main()")
WORKERS = ("generator", "learner", "reward")
PATIENCE_S = 400.0


class Standing:
    """A coordinator and a worker of each kind, at fixed ports."""

    def __init__(self, folder: Path, kinds: tuple[str, ...] = WORKERS) -> None:
        self.folder = folder
        self.coordinator = f"127.0.0.1:{free_port()}"
        self.processes = {
            "coordinator": self._start("coordinator", "--listen", self.coordinator, "--data-dir", str(folder / "runs"))
        }
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in kinds}
        for name in kinds:
            self.start_worker(name, *(("--num-ranks", "2") if name == "learner" else ()))

    def start_worker(self, kind: str, *options: str) -> None:
        listen, data_dir = self.addresses[kind], str(self.folder / "runs")
        common = ("--coordinator", self.coordinator, "--listen", listen, "--data-dir", data_dir)
        self.processes[kind] = self._start(kind, *common, *options)

    def wait_until_registered(self) -> None:
        def know_all() -> bool:
            with contextlib.suppress(AssertionError):  # There may be no coordinator yet.
                known = json.loads(self.shoal("workers", "--output", "json")).get("workers", ())
                return len(known) >= len(self.addresses)
            return False

        block_until(know_all, "all workers have registered", timeout_s=PATIENCE_S)

    @contextlib.contextmanager
    def registered(self) -> Iterator[Self]:
        """Waits until all have registered; ends them after the block, and fails if a process is left over."""
        try:
            self.wait_until_registered()
            yield self
        finally:
            left = self.end()
        assert not left, f"left over: {left}"

    def _start(self, name: str, *options: str) -> psutil.Popen:
        return self.start_module(name, f"services.{name}", *options, "--log-file", str(self.folder / f"{name}.log"))

    def start_module(self, name: str, *command: str, environment: dict[str, str] | None = None) -> psutil.Popen:
        """Starts a Python module with its options; appends its standard error to `<name>.err`."""
        with (self.folder / f"{name}.err").open("a") as log:
            return psutil.Popen(
                [sys.executable, "-m", *command],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
            )

    def shoal(self, *arguments: str) -> str:
        done = subprocess.run(
            [*CLI, *arguments, "--coordinator", self.coordinator],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"shoal {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def events(self, run: str) -> list[dict[str, Any]]:
        path = self.folder / "runs" / run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, run: str, after: int, kind: str, **attributes: Any) -> dict[str, Any]:
        """Waits for an event after a sequence number; fails if the run fails meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for event in self.events(run):
                if event["sequence"] <= after:
                    continue
                assert event["attributes"].get("state") != "FAILED", event["message"]
                if event["kind"] == kind and attributes.items() <= event["attributes"].items():
                    return event
            time.sleep(0.2)
        raise AssertionError(f"no {kind} {attributes} of {run} within {PATIENCE_S} s: {self.events(run)[-5:]}")

    def restored_after(self, run: str, after: int) -> int:
        """Returns the step that the run goes on from, once it has trained its next one."""
        restored = self.until(run, after, "restored")
        version = int(restored["attributes"]["policy_version"])
        self.until(run, restored["sequence"], "step", step=version + 1)
        return version

    def saved(self, run: str) -> int:
        """Has a checkpoint written; returns its step, once the run has trained its next one."""
        after = self.last(run)
        self.shoal("run", "checkpoint")
        checkpoint = self.until(run, after, "checkpoint")
        version = int(checkpoint["attributes"]["policy_version"])
        self.until(run, checkpoint["sequence"], "step", step=version + 1)
        return version

    def last(self, run: str) -> int:
        return max((int(event["sequence"]) for event in self.events(run)), default=-1)

    def family(self) -> list[psutil.Process]:
        return [
            process
            for name in self.processes
            if name != "coordinator"
            for process in (self.processes[name], *self.processes[name].children(recursive=True))
        ]

    def end(self) -> list[psutil.Process]:
        seen = [*self.family(), self.processes["coordinator"]]
        for process in self.processes.values():
            process.terminate()
        psutil.wait_procs(list(self.processes.values()), timeout=60)
        left: list[psutil.Process] = psutil.wait_procs(seen, timeout=10)[1]
        for process in left:
            process.kill()
        return left
