"""Compares two checkouts of Shoal on one configuration: the time of a step, and every figure of the run.

    git worktree add ../before COMMIT
    python benchmarks/two_checkouts.py ../before configs/quickstart.toml --pairs 12
    python benchmarks/two_checkouts.py ../before configs/quickstart.toml --figures 3 --set generator.dtype=float32

With `--pairs`, `shoal train` of both checkouts runs on this machine at once, and only one of them steps: while one
takes a step, the other is paused. So both see the same noise, and pairs of neighboring steps can be compared. It prints
the median of the steps of each, that of the ratios within the pairs, and exits with code 1 if that is above `--bound`.

With `--figures`, each runs that many steps with run.deterministic, one after the other, and what stands in
metrics.jsonl is compared, times and rates apart. The exit code is 1 if a figure differs.

The other checkout is called with the packages of this one's environment.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.coordinator.client import coordinator
from shoal.v1 import coordinator_pb2 as pb

HERE = Path(__file__).resolve().parents[1]
RUN = "compared"
MANY_STEPS = 100_000
WARM_UP = 2
"""Steps of each before the first pair: engines compile and caches fill in them."""
_TIMED = re.compile(r"^time/|^waiting/|_per_second|_s$|seconds|timestamp|memory|disk|^utilization/|/hour")


class Run:
    """`shoal train` of one checkout."""

    def __init__(self, checkout: Path, config: Path, data_dir: Path, settings: Sequence[str], *, timeout_s: float):
        self.folder = data_dir / RUN
        self._timeout_s = timeout_s
        self._output = data_dir / "train.out"
        command = [sys.executable, "-c", "from services.coordinator.cli import main; main()", "train", str(config)]
        sets = [part for setting in settings for part in ("--set", setting)]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--name", RUN, "--data-dir", str(data_dir), *sets],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=checkout,
                env=os.environ | {"PYTHONPATH": str(checkout)},
            )  # fmt: skip

    def steps(self) -> list[dict[str, Any]]:
        """Returns the metrics of the steps so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [values for values in map(json.loads, lines) if "time/step" in values]

    async def wait_for(self, num_steps: int) -> None:
        """Waits until as many steps were taken."""
        give_up = time.monotonic() + self._timeout_s
        while len(self.steps()) < num_steps:
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"no step {num_steps}:\n{self._output.read_text()[-3000:]}")
            await asyncio.sleep(0.05)

    async def step(self) -> float:
        """Takes a step, with a pause before and behind it; returns its time in seconds."""
        num_steps = len(self.steps())
        async with coordinator(self._address) as stub:
            await stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
            await self.wait_for(num_steps + 1)
            await stub.PauseRun(pb.PauseRunRequest(), timeout=60)
        return float(self.steps()[num_steps]["time/step"])

    async def pause(self) -> None:
        """Pauses the run."""
        async with coordinator(self._address) as stub:
            await stub.PauseRun(pb.PauseRunRequest(), timeout=60)

    @property
    def _address(self) -> str:
        found: list[str] = re.findall(r"--coordinator (\S+)", self._output.read_text())
        return found[0]

    def end(self) -> None:
        """Ends it with all its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)  # Its processes end with it.
        self.process.wait()


async def compare_times(runs: Sequence[Run], num_pairs: int, bound: float) -> int:
    """Takes steps in turns, and prints how long they took."""
    for run in runs:
        await run.wait_for(WARM_UP)
        await run.pause()
    pairs = []
    for number in range(num_pairs):
        # Who begins changes, so that a machine that warms up favors nobody.
        order = (0, 1) if number % 2 else (1, 0)
        taken = {index: await runs[index].step() for index in order}
        pairs.append((taken[0], taken[1]))
        print(f"pair {number + 1:2}: {taken[0]:6.2f} s before, {taken[1]:6.2f} s here", flush=True)
    before, here = (statistics.median(one) for one in zip(*pairs, strict=True))
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    print(f"median of {num_pairs}: {before:.2f} s before, {here:.2f} s here; median of the ratios {ratio:.3f}")
    return int(ratio > bound)


def compare_figures(both: Sequence[list[dict[str, Any]]]) -> int:
    """Prints how many figures of the steps are equal, and those that are not."""
    num_equal, different = 0, []
    for number, (before, here) in enumerate(zip(*both, strict=True), start=1):
        names = [name for name in before.keys() & here.keys() if not _TIMED.search(name)]
        num_equal += sum(before[name] == here[name] for name in names)
        different += [
            f"step {number}: {name} was {before[name]!r} and is {here[name]!r}"
            for name in sorted(names)
            if before[name] != here[name]
        ]
    lost = sorted({name for steps in zip(*both, strict=True) for name in steps[0].keys() - steps[1].keys()})
    print(*different, *(f"{name} is no longer there" for name in lost), sep="\n")
    print(f"{num_equal} figures are equal, {len(different)} differ")
    return int(bool(different or lost or not num_equal))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for shoal train")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--figures", type=int, default=0, metavar="STEPS")
    parser.add_argument("--bound", type=float, default=1.03)
    parser.add_argument("--timeout-s", type=float, default=900.0, help="longest wait for a step (default: %(default)s)")
    options = parser.parse_args()
    checkouts = (options.before.resolve(), HERE)
    config = options.config.resolve()
    settings = [*options.set, "evaluation.num_prompts=8", "checkpoint.every_steps=100000"]

    def begin(index: int, data_dir: str, *more: str) -> Run:
        folder = Path(data_dir) / str(index)
        folder.mkdir()
        return Run(checkouts[index], config, folder, [*settings, *more], timeout_s=options.timeout_s)

    code = 0
    with tempfile.TemporaryDirectory() as data_dir:
        runs: list[Run] = []
        try:
            if options.pairs:
                runs = [begin(index, data_dir, f"run.num_steps={MANY_STEPS}") for index in (0, 1)]
                code = asyncio.run(compare_times(runs, options.pairs, options.bound))
            elif options.figures:
                for index in (0, 1):
                    run = begin(index, data_dir, "run.deterministic=true", f"run.num_steps={options.figures}")
                    runs.append(run)
                    asyncio.run(run.wait_for(options.figures))
                    run.process.wait(options.timeout_s)
                code = compare_figures([run.steps() for run in runs])
        finally:
            for run in runs:
                run.end()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
