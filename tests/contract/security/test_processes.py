"""The services' entry points and the command line, as processes, with the certificates that `shoal certs` makes."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.authority import issue_all
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from tests.support.local_stack import SHOAL, write_config
from tests.support.processes import ended
from tests.support.scripted_workers import (
    Plane,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    arithmetic_config,
    serving_workers,
)
from tests.support.waiting import eventually

PYTHON = sys.executable
HEALTHCHECK = (PYTHON, "-m", "shoal.rpc.healthcheck")


async def run(*command: str | Path, **environment: str) -> tuple[int | None, str]:
    code, out, error = await ended(*command, **environment)
    return code, out + error


@asynccontextmanager
async def service(kind: str, *options: str | Path, log: Path, **environment: str) -> AsyncIterator[psutil.Process]:
    with log.open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            *(PYTHON, "-m", f"services.{kind}", "--metrics-port", "0", *map(str, options)),
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | environment,
        )
    try:
        yield psutil.Process(started.pid)
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


@asynccontextmanager
async def coordinator(
    folder: Path, *options: str | Path, **environment: str
) -> AsyncIterator[tuple[psutil.Process, str]]:
    """Runs a coordinator whose log and runs are in the folder; yields its process and its address."""
    port_file = folder / "port"
    own = ("--listen", "127.0.0.1:0", "--data-dir", folder / "runs", "--port-file", port_file)
    async with service("coordinator", *own, *options, log=folder / "coordinator.log", **environment) as process:
        yield process, str(await eventually(lambda: port_file.exists() and port_file.read_text().strip()))


def listening_addresses(process: psutil.Process) -> list[Any]:
    """Returns where a process and its descendants listen: services, metrics, and what libraries open."""
    connections = [found for each in (process, *process.children(recursive=True)) for found in each.net_connections()]
    return [found.laddr for found in connections if found.status == psutil.CONN_LISTEN]


async def until_registered(address: str, certs: Path, kinds: set[str]) -> list[dict[str, str]]:
    """Waits until the workers of these kinds have registered, and returns them as the coordinator lists them."""

    async def listed() -> list[dict[str, str]]:
        code, text = await run(
            SHOAL, "--tls-dir", certs / "viewer", "workers", "--coordinator", address, "--output", "json"
        )
        assert code == 0, text
        workers: list[dict[str, str]] = json.loads(text).get("workers", [])
        found = {worker["kind"].removeprefix("WORKER_KIND_").lower() for worker in workers}
        return workers if found == kinds else []

    workers: list[dict[str, str]] = await eventually(listed)
    return workers


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    issue_all(tmp_path / "certs", hosts=())
    return tmp_path / "certs"


async def test_a_coordinator_and_a_worker_meet_over_mutual_tls_and_nobody_else_gets_in(
    certs: Path, tmp_path: Path
) -> None:
    await meet_over_mutual_tls(("reward",), certs, tmp_path)


async def meet_over_mutual_tls(kinds: tuple[str, ...], certs: Path, tmp_path: Path) -> None:
    """Starts a coordinator and workers, and checks who can call them. tests/acceptance has workers of all kinds."""
    async with AsyncExitStack() as started:
        serving = coordinator(tmp_path, "--tls-dir", certs / "coordinator")
        process, address = await started.enter_async_context(serving)
        processes = [process]
        for kind in kinds:
            worker = ("--coordinator", address, "--tls-dir", certs / kind)
            processes.append(await started.enter_async_context(service(kind, *worker, log=tmp_path / f"{kind}.log")))
        workers = await until_registered(address, certs, set(kinds))

        # gRPC writes IPv4 addresses as IPv6.
        listening = {
            where.ip.removeprefix("::ffff:") for process in processes for where in listening_addresses(process)
        }
        assert listening == {"127.0.0.1"}, listening

        pause = ("run", "pause", "--coordinator", address)
        assert (await run(SHOAL, "--tls-dir", certs / "operator", *pause))[0] == 4, "no run is active"
        code, text = await run(SHOAL, *pause, SHOAL_TLS_DIR=str(certs / "viewer"))
        assert code == 7 and "PauseRun" in text and "'viewer'" in text, text
        code, text = await run(SHOAL, *pause)
        assert code == 6 and "--tls-dir" in text, text

        log = (tmp_path / "coordinator.log").read_text()
        calls = [json.loads(line) for line in log.splitlines() if "call of an operator" in line]
        told = [(call["caller"], call["rpc"], call["code"]) for call in calls]
        assert told == [
            ("operator/operator", "PauseRun", "NOT_FOUND"),
            ("viewer/viewer", "PauseRun", "PERMISSION_DENIED"),
        ], log

        probed = [(address, "coordinator"), *((worker["address"], "reward") for worker in workers)]
        for where, folder in probed:
            code, text = await run(*HEALTHCHECK, where, "--tls-dir", certs / folder)
            assert code == 0, f"{folder} at {where}: {text}"
            code, text = await run(*HEALTHCHECK, where)
            assert code == 1 and "UNAVAILABLE" in text, text

        secrets = [line for key in certs.rglob("*.key") for line in key.read_text().splitlines() if "-" not in line]
        shown = [text for process in processes for text in process.cmdline()]
        logged = [file.read_text(errors="replace") for file in tmp_path.glob("*.log")]
        assert secrets and not [line for line in secrets for text in (*shown, *logged) if line in text]


async def test_a_run_trains_over_mutual_tls(
    certs: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_worker = Credentials.of_server(Role.WORKER, tls_dir=certs / "generator", tokens_file=None)
    monkeypatch.setattr(auth, "_process", of_worker)  # The workers follow a script, in this process.
    async with coordinator(tmp_path, "--tls-dir", certs / "coordinator") as (_, address):
        plane = Plane()
        config = write_config(tmp_path / "run.toml", arithmetic_config(model, run={"num_steps": 2}))
        start = ("--tls-dir", certs / "operator", "run", "start", config, "--coordinator", address, "--watch")
        async with serving_workers(address, ScriptedLearner(plane), ScriptedReward(), ScriptedGenerator(plane)):
            code, text = await run(SHOAL, *start)
        assert code == 0, text
    configuration = next((tmp_path / "runs").glob("*/config.json")).read_text()
    assert "certs" not in configuration and "tls" not in configuration, configuration


async def test_tokens_work_from_the_command_line_to_the_tokens_file(tmp_path: Path) -> None:
    lines = []
    for role in ("coordinator", "operator", "viewer"):
        code, line = await run(SHOAL, "token", role, f"test-{role}", tmp_path / role)
        token = (tmp_path / role).read_text().strip()
        assert code == 0 and token not in line and (tmp_path / role).stat().st_mode & 0o777 == 0o600, line
        lines.append(line)
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("".join(lines))
    of_coordinator = str(tmp_path / "coordinator")
    async with coordinator(tmp_path, "--tokens-file", tokens, SHOAL_TOKEN_FILE=of_coordinator) as (_, address):
        pause = (SHOAL, "run", "pause", "--coordinator", address)
        found = {
            name: (await run(*pause, **environment))[0]
            for name, environment in {
                "operator": {"SHOAL_TOKEN_FILE": str(tmp_path / "operator")},
                "viewer": {"SHOAL_TOKEN": (tmp_path / "viewer").read_text().strip()},
                "nobody": {},
            }.items()
        }
        assert found == {"operator": 4, "viewer": 7, "nobody": 7}, "4: no run is active; 7: not allowed"


@pytest.mark.parametrize("kind", ["coordinator", "reward"])
async def test_a_service_that_is_half_configured_ends_with_one_line(kind: str, certs: Path, tmp_path: Path) -> None:
    (certs / kind / "tls.key").unlink()
    options = ("--coordinator", "127.0.0.1:9") if kind == "reward" else ("--data-dir", tmp_path / "runs")
    code, text = await run(PYTHON, "-m", f"services.{kind}", *options, "--tls-dir", certs / kind)
    assert code == 1 and "tls.key is missing" in text and "Traceback" not in text, text
