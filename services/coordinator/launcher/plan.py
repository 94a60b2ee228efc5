"""Which processes a run on this machine consists of, and how each is started."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.launcher.devices import share_out
from shoal.config import RunConfig

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ProcessPlan:
    """How one process is started."""

    name: str
    """Unique among the processes; also the name of its log."""
    kind: str
    """coordinator, learner, generator or reward."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """What it has in its environment beyond, or instead of, what this process has."""

    @property
    def may_restart(self) -> bool:
        """Whether a run survives its death: generators and rewards hold nothing that is lost with them."""
        return self.kind in ("generator", "reward")


def plan_coordinator(config: RunConfig, *, data_dir: Path, port_file: Path) -> ProcessPlan:
    """The coordinator: it has to be up before the others are told where it is."""
    command = _python(
        "coordinator",
        "--listen", f"{LOOPBACK}:{config.launch.coordinator_port}",
        "--data-dir", str(data_dir),
        "--port-file", str(port_file),
        *_metrics(os.environ.get("SHOAL_METRICS_PORT")),
    )  # fmt: skip
    return ProcessPlan("coordinator", "coordinator", command, _environment(1))


def plan_workers(config: RunConfig, *, coordinator: str, data_dir: Path, gpus: Sequence[str]) -> list[ProcessPlan]:
    """Learner, generators and rewards, the slowest to start first."""
    cores = len(os.sched_getaffinity(0))
    shares = share_out(config, gpus)
    where = (
        "--coordinator", coordinator,
        "--listen", f"{LOOPBACK}:0",
        "--advertise", LOOPBACK,
        "--data-dir", str(data_dir),
        *_metrics("0" if "SHOAL_METRICS_PORT" in os.environ else None),
    )  # fmt: skip

    def plan(kind: str, name: str, num_sharing: int, *options: str) -> ProcessPlan:
        environment = _environment(max(1, cores // num_sharing))
        if name in shares:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(shares[name])
        return ProcessPlan(name, kind, _python(kind, *where, *options), environment)

    launch = config.launch
    return [
        *(plan("generator", f"generator-{i}", launch.num_generators) for i in range(launch.num_generators)),
        plan("learner", "learner", launch.num_learner_ranks, "--num-ranks", str(launch.num_learner_ranks)),
        *(plan("reward", f"reward-{i}", cores) for i in range(launch.num_rewards)),
    ]


def _python(kind: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{kind}", *options)


def _metrics(port: str | None) -> tuple[str, ...]:
    return ("--metrics-port", port) if port else ()


def _environment(num_threads: int) -> dict[str, str]:
    """Threads of the maths libraries: each process would take all cores otherwise. What is set already stays.

    Threads that wait for each other sleep instead of spinning: engine and learner share the cores, and a thread that
    spins keeps the one it waits for from running (50 times slower, measured on two cores that were in use).
    """
    wanted = {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
