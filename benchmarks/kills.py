"""Kills processes of a run with `kill -9`, one after another, and measures how long each costs.

    python benchmarks/kills.py configs/quickstart.toml --kills 20 --seed 7 --set launch.num_learner_ranks=2

Starts `shoal train`. At a random moment after a new step it kills a process other than `shoal train` itself:
coordinator, ranks of the learner, generators with their engines, reward services with their pools. Then it waits for
the second step that is new, since the first may have been under way. Nobody helps the run meanwhile. After the last
kill the run takes ten more steps and ends. The seed determines the draws; the moments of a busy machine are its own.

The table has, for each kill, the seconds until that step was trained, and the bound: 1.2 times the sum of the measured
start-up, a lease of 15 s, and the steps that were repeated and the two new ones, each at the median time of a step. It
ends with the effective time, and with the proof from the ledger that every prompt was used exactly once. The exit code
is 1 if a kill took longer than its bound, 2 if the run did not finish or the ledger has a prompt twice or not at all.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.client import coordinator, patiently
from services.coordinator.reporting.run_times import EffectiveTime
from services.coordinator.store.events import EVENTS, read_events_from
from services.coordinator.store.files.manifest import MANIFEST
from services.coordinator.store.rollouts import whole_ledger
from services.coordinator.workers.registry import LEASE_S
from shoal.v1 import coordinator_pb2 as pb

RUN = "kills"
SLACK = 1.2
POLL_S = 0.1
MAX_DELAY_S = 15.0
MANY_STEPS = 100_000
_HELPERS = ("resource_tracker", "launcher.child")


@dataclass(frozen=True)
class Kill:
    """A kill, and what it cost."""

    process: str
    step: int
    """The last step before it."""
    took_s: float
    """Until the second new step was trained."""
    num_repeated: int
    bound_s: float
    is_in_checkpoint: bool
    """Whether a checkpoint was being written or brought to disk."""

    @property
    def is_within_bound(self) -> bool:
        return self.took_s <= self.bound_s


class Run:
    """A run of `shoal train`, seen from outside."""

    def __init__(self, arguments: Sequence[str], data_dir: Path, *, timeout_s: float) -> None:
        self.folder = data_dir / RUN
        self._timeout_s = timeout_s
        self.began_s = time.time()
        self._events: list[pb.RunEvent] = []
        self._position = 0
        """Of the events file: what is behind it was not read yet."""
        self.output = (data_dir / "train.out").open("w")
        command = [sys.executable, "-c", "from services.coordinator.cli import main; main()", "train", *arguments]
        self.process = subprocess.Popen(
            [*command, "--name", RUN, "--data-dir", str(data_dir), "--set", f"run.num_steps={MANY_STEPS}"],
            stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def events(self) -> list[pb.RunEvent]:
        new, self._position = read_events_from(self.folder / EVENTS, self._position)
        self._events += new
        return self._events

    def furthest_step(self, until_s: float = math.inf) -> int:
        """Returns the furthest step that was trained until a time."""
        steps = (_step(event) for event in self.events() if event.kind == "step" and _time_s(event) <= until_s)
        return max(steps, default=0)

    def wait_for_step(self, step: int) -> None:
        """Waits until a step that far is trained."""
        give_up = time.monotonic() + self._timeout_s
        while self.furthest_step() < step:
            if self.process.poll() is not None:
                raise SystemExit(f"shoal train ended with code {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > give_up:
                raise SystemExit(f"no step {step} within {self._timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def victims(self) -> list[psutil.Process]:
        """Returns the processes that may be killed, by pid."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
                if line and not any(helper in line for helper in _HELPERS):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.pid)

    def end(self) -> dict[str, Any]:
        """Lets the run take ten more steps, and returns its record once it has ended."""
        (line,) = [line for line in Path(self.output.name).read_text().splitlines() if "coordinator serves at" in line]

        async def end_soon() -> None:
            async with coordinator(line.split()[-1]) as stub:
                values = {"run": {"num_steps": self.furthest_step() + 10}}
                request = pb.UpdateRunConfigRequest(run_id=RUN, config=json_format.ParseDict(values, Struct()))
                await patiently(lambda: stub.UpdateRunConfig(request, timeout=60))

        asyncio.run(end_soon())
        self.process.wait(self._timeout_s)
        record: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        if self.process.returncode or record["state"] != "FINISHED":
            print(f"the run did not finish: {record['state']}, {record['message']}\n{self.tail()}", file=sys.stderr)
            raise SystemExit(2)
        return record

    def is_saving(self, since_s: float) -> bool:
        """Returns whether a checkpoint that was begun after a time is not committed."""
        with suppress(FileNotFoundError):  # An older one is deleted meanwhile.
            begun = [folder for folder in self.folder.glob("checkpoints/*") if folder.stat().st_mtime > since_s]
            return any(not (folder / MANIFEST).exists() for folder in begun)
        return False

    def tail(self) -> str:
        return Path(self.output.name).read_text()[-4000:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for shoal train")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=Path("runs/kills"), help="must not have a run named kills")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="longest wait for a step (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    options.data_dir.mkdir(parents=True, exist_ok=True)
    settings = [part for setting in options.set for part in ("--set", setting)]
    run = Run([str(options.config), *settings], options.data_dir, timeout_s=options.timeout_s)
    try:
        kills = kill_all(run, options.kills, random.Random(options.seed))
        record = run.end()
    finally:
        if run.process.poll() is None:
            run.process.kill()  # Its processes end with it.
    share = EffectiveTime(run.events()).share
    problems = problems_of_ledger(run.folder, int(record["policy_version"]))
    late = [kill for kill in kills if not kill.is_within_bound]
    in_checkpoint = sum(kill.is_in_checkpoint for kill in kills)
    print(f"{len(kills)} kills, {len(late)} of them above the bound; {record['attempt']} restarts of the run")
    print(f"{in_checkpoint} kills while a checkpoint was written or brought to disk")
    print(f"effective time: {share:.1%}; the ledger: {'; '.join(problems) or 'every prompt exactly once'}")
    if options.json:
        values = {"kills": [asdict(kill) for kill in kills], "effective_time": share, "problems": problems}
        options.json.write_text(json.dumps(values | {"attempts": record["attempt"]}, indent=2) + "\n")
    raise SystemExit(2 if problems else 1 if late else 0)


def kill_all(run: Run, num_kills: int, draw: random.Random) -> list[Kill]:
    """Kills one process after another, and prints what each kill cost."""
    run.wait_for_step(2)
    startup_s = _startup_s(run)
    print(f"start-up: {startup_s:.1f} s")
    kills = []
    for number in range(1, num_kills + 1):
        since_s = time.time()  # What is older and not committed was left by a process that was killed.
        time.sleep(draw.uniform(0, MAX_DELAY_S))
        is_in_checkpoint = run.is_saving(since_s)
        name, killed_s = _kill_one(run, draw)
        step = run.furthest_step(killed_s)
        run.wait_for_step(step + 2)
        kill = _measured(run, name, step, killed_s, startup_s, is_in_checkpoint=is_in_checkpoint)
        kills.append(kill)
        print(
            f"{number:3d}  {name:44} after step {step:4d}: {kill.took_s:6.1f} s, {kill.num_repeated} repeated "
            f"(bound {kill.bound_s:.1f} s){'' if kill.is_within_bound else '  TOO LATE'}",
            flush=True,
        )
    return kills


def _kill_one(run: Run, draw: random.Random) -> tuple[str, float]:
    """Kills a process that is there; returns its name, and when it was killed."""
    while True:
        if victims := run.victims():
            victim = draw.choice(victims)
            with suppress(psutil.NoSuchProcess):  # One that ended by itself meanwhile is no victim.
                name = _name(victim)
                victim.kill()
                return name, time.time()
        time.sleep(POLL_S)


def _measured(run: Run, name: str, step: int, killed_s: float, startup_s: float, *, is_in_checkpoint: bool) -> Kill:
    steps = [(_step(event), _time_s(event)) for event in run.events() if event.kind == "step"]
    new_s = min(time_s for number, time_s in steps if number == step + 2)
    num_repeated = sum(killed_s < time_s < new_s and number <= step for number, time_s in steps)
    bound_s = SLACK * (startup_s + LEASE_S + (num_repeated + 2) * _median_step_s(run))
    return Kill(name, step, new_s - killed_s, num_repeated, bound_s, is_in_checkpoint)


def _startup_s(run: Run) -> float:
    return min(_time_s(event) for event in run.events() if event.message.startswith("training from step")) - run.began_s


def _median_step_s(run: Run) -> float:
    times = [event.attributes["metrics"]["time/step"] for event in run.events() if event.kind == "step"]  # type: ignore[index, call-overload]
    return float(statistics.median(times))


def _name(process: psutil.Process) -> str:
    """Names a process by its service, or by that of the nearest parent that has one."""
    names = [process.name()]
    for each in (process, *process.parents()):
        services = [part for part in each.cmdline() if part.startswith("services.")]
        if services:
            rank = each.environ().get("RANK") if services[0] == "services.learner" else None
            names = [services[0] + (f", rank {rank}" if rank else ""), *(names if each != process else [])]
            break
    return " - ".join(names)


def _step(event: pb.RunEvent) -> int:
    return int(event.attributes.fields["step"].number_value)


def _time_s(event: pb.RunEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9


def problems_of_ledger(folder: Path, num_steps: int) -> list[str]:
    """Returns how the ledger of a finished run fails to show that every prompt was used exactly once; empty if not."""
    with closing(whole_ledger(folder)) as connection:
        groups = connection.execute(
            "SELECT order_number, position, state, train_step FROM groups ORDER BY 1"
        ).fetchall()
    config = json.loads((folder / "config.json").read_text())
    problems = []
    if [order_number for order_number, *_ in groups] != list(range(len(groups))):
        problems.append("the order numbers have a gap")
    if sorted(position for _, position, *_ in groups) != list(range(len(groups))):
        problems.append("a position in the data was skipped, or used twice")
    by_step: dict[Any, int] = {}
    for _, _, state, train_step in groups:
        if state == "TRAINED":
            by_step[train_step] = by_step.get(train_step, 0) + 1
    if sorted(by_step) != list(range(1, num_steps + 1)):
        problems.append(f"the trained steps are {sorted(by_step)}")
    if config["grpo"].get("groups_per_step") and max(by_step.values()) > config["grpo"]["groups_per_step"]:
        problems.append("a step has more groups than grpo.groups_per_step")
    return problems


if __name__ == "__main__":
    main()
