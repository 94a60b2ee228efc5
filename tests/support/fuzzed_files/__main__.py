"""Gives arbitrary files to their readers for some time, one reader after the other, in a process each."""

import argparse
import faulthandler
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.support.fuzzed_files.mutation import MAX_BYTES, mutated
from tests.support.fuzzed_files.trial import problem

if TYPE_CHECKING:
    from tests.support.fuzzed_files.targets import Target

MORE_BYTES = 1 << 30
"""Memory that a reader may take beyond what its process has at its start."""
_GRACE_S = 300.0
_SHOWN_PROBLEMS = 8


def main() -> int:
    # Only modules that are imported meanwhile can be instrumented.
    with _instrumenting() if "--coverage" in sys.argv else nullcontext():
        from tests.support.fuzzed_files.targets import TARGETS
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzzed_files", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"beginnings of names, of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the contents that show a defect")
    parser.add_argument("--coverage", action="store_true", help="let atheris guide the changes by the code they reach")
    arguments = parser.parse_args()
    names = [name for name in TARGETS if not arguments.targets or name.startswith(tuple(arguments.targets))]
    failed, seconds = 0, arguments.seconds / len(names)
    for name in names:
        process = multiprocessing.get_context("fork").Process(
            target=_run_guided if arguments.coverage else _run,
            args=(name, TARGETS[name], seconds, arguments.seed, arguments.keep),
        )
        process.start()
        process.join(seconds + _GRACE_S)
        if process.is_alive():
            print(f"{name}: HANGS in code that no signal interrupts", flush=True)
            process.kill()
            process.join()
        failed += process.exitcode != 0
    return 1 if failed else 0


def _run(name: str, target: "Target", seconds: float, seed: int, keep: Path | None) -> None:
    faulthandler.register(signal.SIGUSR1)
    seeds = _warm_up(target)
    limit = psutil.Process().memory_info().vms + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    defects = _Defects(name, keep)
    trials, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        rng = random.Random(f"{name}.{seed}.{trials}")
        data = mutated(rng.choice(seeds), seeds, rng)
        defects.look(data, problem(target, data), f"seed {seed} trial {trials}")
        trials += 1
    print(f"{name}: {trials} files from seed {seed}, {defects}", flush=True)
    sys.exit(1 if defects.found else 0)


def _run_guided(name: str, target: "Target", seconds: float, seed: int, keep: Path | None) -> None:
    import atheris

    with _instrumenting():
        seeds = _warm_up(target)
    defects = _Defects(name, keep)
    trials, end = 0, time.monotonic() + seconds

    def once(data: bytes) -> None:
        nonlocal trials
        if time.monotonic() >= end:
            print(f"{name}: {trials} files, guided, from seed {seed}, {defects}", flush=True)
            os._exit(1 if defects.found else 0)  # The fuzzer itself never returns.
        trials += 1
        defects.look(data, problem(target, data), f"seed {seed}")

    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-corpus-") as corpus:
        for number, data in enumerate(seeds):
            (Path(corpus) / f"{number}").write_bytes(data)
        limits = [f"-seed={seed}", f"-max_len={MAX_BYTES}"]
        # The alarm is that of `problem`.
        atheris.Setup(["fuzzed_files", *limits, "-timeout=0", "-verbosity=0", corpus], once)
        atheris.Fuzz()


def _instrumenting() -> AbstractContextManager[Any]:
    """Lets atheris see which code of Shoal runs, in the modules that are imported meanwhile."""
    import atheris

    instrumenting: AbstractContextManager[Any] = atheris.instrument_imports(include=["shoal", "services", "yaml"])
    return instrumenting


def _warm_up(target: "Target") -> Sequence[bytes]:
    """Returns the real files, which have been read: imports and caches are no growth."""
    seeds = target.seeds()
    for data in seeds:
        problem(target, data)
    return seeds


class _Defects:
    """Counts defects by their last line, prints the first ones, and keeps what shows them."""

    def __init__(self, name: str, keep: Path | None) -> None:
        self._name, self._keep = name, keep
        self.found: Counter[str] = Counter()

    def look(self, data: bytes, wrong: str, where: str) -> None:
        if not wrong:
            return
        kind = wrong.strip().splitlines()[-1][:120]
        self.found[kind] += 1
        if self.found[kind] > 1 or len(self.found) > _SHOWN_PROBLEMS:
            return
        print(f"\n{self._name} {where}:\n{wrong}", flush=True)
        if self._keep is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / f"{self._name.replace('/', '_')}.{len(self.found)}").write_bytes(data)

    def __str__(self) -> str:
        return f"{self.found.total()} defects: {dict(self.found)}"


if __name__ == "__main__":
    sys.exit(main())
