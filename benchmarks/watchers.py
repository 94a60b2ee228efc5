"""Measures what watchers of a run cost it: its steps a second without any, while they arrive, and while they watch.

    python benchmarks/watchers.py                          # 1,000 watchers, 20 s each
    python benchmarks/watchers.py --num-watchers 200 --seconds 10

Coordinator and scripted workers are one process, the watchers another one, with 50 calls on each of their connections.
Each watcher begins with the run's first event, and has arrived when it has all that were there when the first one
came. The numbers are shares of the rate without watchers in the same run, so other work on the machine counts in both.
First come memory and time of the events of 2,000 steps.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil

from services.coordinator.store.events import EVENTS, EventLog
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc
from tests.support.cluster import Cluster
from tests.support.loopback import COORDINATOR
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.tiny_model import make_tiny_model

NUM_STEPS = 2000
STEP_S = 0.5
"""Of the scripted learner."""
CALLS_PER_CONNECTION = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-watchers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="time of each rate without arrivals")
    parser.add_argument("--arrival-seconds", type=float, default=60.0, help="longest time for the arrivals")
    parser.add_argument("--single", action="store_true", help="watchers ask for one event a response")
    parser.add_argument("--watch", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--num-events", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.watch:
        asyncio.run(watch(options.watch, options.num_watchers, options.num_events, batches=not options.single))
        return
    with tempfile.TemporaryDirectory(prefix="shoal-watchers-") as folder:
        measure_memory(Path(folder))
        asyncio.run(measure_rates(Path(folder), options))


def measure_memory(folder: Path) -> None:
    """Prints what the events of 2,000 steps take."""
    process = psutil.Process()
    log = EventLog(folder / EVENTS)
    gc.collect()
    before, began = process.memory_info().rss, time.perf_counter()
    metrics = {f"part/metric_{index}": 1.2345 * index for index in range(90)}
    for step in range(1, NUM_STEPS + 1):
        log.add("step", f"step {step}/{NUM_STEPS}: 9.1% correct", step=step, num_steps=NUM_STEPS, metrics=metrics)
        for _ in range(4):
            log.add("published", f"the weights of step {step} are published", step=step, duration_s=1.25)
    spent_s = time.perf_counter() - began
    gc.collect()
    grown = process.memory_info().rss - before
    print(
        f"the events of {NUM_STEPS} steps: {grown / 1e6:.1f} MB of memory ({grown / NUM_STEPS / 1e3:.2f} KB a step), "
        f"{(folder / EVENTS).stat().st_size / 1e6:.1f} MB of file, {spent_s / NUM_STEPS * 1e3:.2f} ms a step"
    )
    log.close()


async def measure_rates(folder: Path, options: argparse.Namespace) -> None:
    """Prints the steps a second of a scripted run with and without watchers."""
    model, num_watchers = make_tiny_model(folder / "model"), options.num_watchers
    cluster = Cluster(folder / "runs")
    cluster.learner.step_s = STEP_S
    await cluster.open()
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    config = arithmetic_config(model, run={"num_steps": 100_000}, checkpoint={"every_steps": 1000})
    await cluster.start(config, run_id="watched")
    rates = Rates(cluster)
    while not rates.num_steps:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await rates.over("warming up", asyncio.sleep(options.seconds))
    rates.alone = await rates.over("no watcher", asyncio.sleep(options.seconds))
    num_events = (folder / "runs" / "watched" / EVENTS).read_bytes().count(b"\n")
    arguments = ["--watch", cluster.address, "--num-watchers", str(num_watchers), "--num-events", str(num_events)]
    arguments += ["--single"] if options.single else []
    watchers = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )
    lines = watchers.stdout
    assert lines is not None
    await asyncio.to_thread(lines.readline)  # They have their imports.
    arriving = asyncio.create_task(asyncio.to_thread(lines.readline))
    name = f"{num_watchers} arriving"
    await rates.over(name, asyncio.wait([arriving], timeout=options.arrival_seconds))
    print(f"{'':>20}  {'all' if arriving.done() else 'not all'} of them have the {num_events} events before them")
    await rates.over(f"{num_watchers} watching", asyncio.sleep(options.seconds))
    watchers.kill()
    watchers.wait()
    await rates.over("no watcher again", asyncio.sleep(options.seconds))
    await cluster.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_NOW), timeout=60)
    await cluster.close()


class Rates:
    """Steps a second of a cluster's run, each as a share of the rate `alone`."""

    def __init__(self, cluster: Cluster) -> None:
        self._batches = cluster.learner.batches
        self._process = psutil.Process()
        self.alone = 0.0

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return len(self._batches)

    async def over(self, name: str, period: Awaitable[Any]) -> float:
        """Prints and returns the rate until a period ends."""
        num_before, began, before = self.num_steps, time.perf_counter(), self._process.cpu_times()
        await period
        spent_s, after = time.perf_counter() - began, self._process.cpu_times()
        rate = (self.num_steps - num_before) / spent_s
        busy = (after.user + after.system - before.user - before.system) / spent_s
        share = f", {rate / self.alone:.0%} of the rate alone" if self.alone else ""
        print(f"{name:>20}: {rate:5.2f} steps/s over {spent_s:5.1f} s, {busy:4.0%} of a core{share}", flush=True)
        return rate


async def watch(address: str, num_watchers: int, num_events: int, *, batches: bool) -> None:
    """Begins the watchers; prints a line when it is ready, and one when all have the events until then."""
    print("ready", flush=True)
    request = pb.WatchRunRequest(batches=batches)
    num_behind = num_watchers

    async def follow(stub: Any) -> None:
        nonlocal num_behind
        is_behind = True
        async for response in stub.WatchRun(request, timeout=3600):
            last = response.events[-1] if batches else response.event
            if is_behind and last.sequence >= num_events:
                is_behind, num_behind = False, num_behind - 1
                if not num_behind:
                    print("arrived", flush=True)

    async with contextlib.AsyncExitStack() as stack:
        tasks: list[asyncio.Task[None]] = []
        while len(tasks) < num_watchers:
            channel = await stack.enter_async_context(connect(address, COORDINATOR))
            stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            num_calls = min(CALLS_PER_CONNECTION, num_watchers - len(tasks))
            tasks += [asyncio.create_task(follow(stub)) for _ in range(num_calls)]
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    main()
