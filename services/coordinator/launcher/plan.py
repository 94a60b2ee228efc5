"""Plans of the processes of a run on this machine: commands, environments, threads."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.launcher.devices import share_out
from shoal.config import RunConfig
from shoal.config.tables.environments import UNBOUNDED_ENVIRONMENT, EnvironmentConfig

LOOPBACK = "127.0.0.1"
# The credentials in this environment belong to a person, for coordinators elsewhere.
_NO_CREDENTIALS = {"SHOAL_TLS_DIR": "", "SHOAL_TOKENS_FILE": "", "SHOAL_TOKEN_FILE": "", "SHOAL_TOKEN": ""}


@dataclass(frozen=True)
class ProcessPlan:
    """The command and environment of one process."""

    name: str
    """A name that is unique in a run, and also the name of the log."""
    kind: str
    """coordinator, learner, generator or reward."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment variables that the process gets in addition to, or in place of, the variables of this process."""
    may_restart: bool = True
    """Whether the process is started again after its death."""


def plan_coordinator(address: str, *, name: str, data_dir: Path, port_file: Path | None = None) -> ProcessPlan:
    """Plans the process of the coordinator. No other coordinator may have the same `name`.

    With `port_file`, plans the first start: the coordinator writes its address to that file. If this process dies, it
    is not restarted, since the cause of a death before the run is accepted would remain.
    """
    command = _python(
        "coordinator",
        "--listen", address,
        "--name", name,
        "--data-dir", str(data_dir),
        *(("--port-file", str(port_file)) if port_file else ()),
        *_metrics(os.environ.get("SHOAL_METRICS_PORT")),
    )  # fmt: skip
    return ProcessPlan("coordinator", "coordinator", command, _environment(1), may_restart=port_file is None)


def plan_workers(config: RunConfig, *, coordinator: str, data_dir: Path, gpus: Sequence[str]) -> list[ProcessPlan]:
    """Plans the generators, the learner and the reward services. Processes that start slowly come first."""
    cores = len(os.sched_getaffinity(0))
    shares = share_out(config, gpus)
    common = (
        "--coordinator", coordinator,
        "--listen", f"{LOOPBACK}:0",
        "--advertise", LOOPBACK,
        "--data-dir", str(data_dir),
        *_metrics("0" if "SHOAL_METRICS_PORT" in os.environ else None),
    )  # fmt: skip

    def plan(kind: str, name: str, num_sharing: int, *options: str) -> ProcessPlan:
        environment = _environment(max(1, cores // num_sharing))
        if kind != "reward" and config.run.num_threads is not None:
            environment["OMP_NUM_THREADS"] = str(config.run.num_threads)
        if name in shares:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(shares[name])
            if "CUDA_VISIBLE_DEVICES" not in os.environ:
                # Use the driver's numbers. By default CUDA counts from the fastest GPU, and vLLM from the first.
                environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return ProcessPlan(name, kind, _python(kind, *common, *options), environment)

    launch = config.launch
    return [
        *(plan("generator", f"generator-{i}", launch.num_generators) for i in range(launch.num_generators)),
        plan("learner", "learner", launch.num_learner_ranks, "--num-ranks", str(launch.num_learner_ranks)),
        *(plan("reward", f"reward-{i}", cores, *_allowed(config)) for i in range(launch.num_rewards)),
    ]


def _allowed(config: RunConfig) -> tuple[str, ...]:
    """Returns options that allow the reward services, of the same user, everything that the configuration asks for."""
    reward, allowed = config.reward, list[str]()
    for table in reward.custom.values():
        if table.file:
            allowed += ("--allow-verifier-folder", str(Path(table.file).parent))
        else:
            # Allow the whole package: a module may offer functions that another module of the package defines.
            allowed += ("--allow-verifier-package", table.entry_point.partition(":")[0].partition(".")[0])
    for environment in config.environments:
        allowed += _allowed_to(environment)
    for endpoint in (reward.judge, reward.model):
        if endpoint.api_key_env and endpoint.base_url:
            allowed += ("--allow-api-key", f"{endpoint.api_key_env}={endpoint.base_url}")
    if code := reward.model.remote_code:
        allowed += ("--allow-remote-code", code)
    return tuple(allowed)


def _allowed_to(environment: EnvironmentConfig) -> Iterator[str]:
    """Yields the options that allow what one environment asks for."""
    if environment.file:
        yield from ("--allow-verifier-folder", str(Path(environment.file).parent))
    elif environment.module:
        yield from ("--allow-verifier-package", environment.module.partition(".")[0])
    if environment.interpreter:
        yield from ("--allow-interpreter", environment.interpreter)
    for _, source, settings in environment.parts:
        if key := settings.get("api_key_env"):
            yield from ("--allow-api-key", f"{key}={settings.get('base_url') or settings.get('url')}")
        if command := settings.get("command"):
            yield from ("--allow-program", shlex.join(command))
        for variable in settings.get("variables", ()):
            yield from ("--allow-variable", variable)
        if words := settings.get("words_file"):
            yield from ("--allow-verifier-folder", str(Path(str(words)).parent))
        if source == UNBOUNDED_ENVIRONMENT:
            yield from ("--allow-verifier-package", source)


def _python(kind: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{kind}", *options)


def _metrics(port: str | None) -> tuple[str, ...]:
    return ("--metrics-port", port) if port else ()


def _environment(num_threads: int) -> dict[str, str]:
    """Limits the threads of the math libraries, which would use all cores in each process.

    Variables that are already set stay unchanged. Waiting threads sleep instead of spinning: the engine and the learner
    share the cores, and a spinning thread can keep the awaited thread from running (50 times slower, measured on two
    busy cores).
    """
    defaults = {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | _NO_CREDENTIALS
