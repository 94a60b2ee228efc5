"""A coordinator process prints its address once it serves; one that cannot start prints the reason, and ends."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from services.coordinator.store.run_record import RunRecord, RunState
from tests.support.configs import run_config
from tests.support.processes import ended, line_of, running
from tests.support.waiting import PATIENCE_S

COORDINATOR = (sys.executable, "-m", "services.coordinator")


async def coordinator(*options: str, **environment: str) -> tuple[int | None, str]:
    code, _, error = await ended(*COORDINATOR, *options, **environment)
    return code, error


async def test_a_coordinator_on_a_free_port_prints_its_address(tmp_path: Path) -> None:
    async with running(*COORDINATOR, "--listen", "127.0.0.1:0", "--data-dir", tmp_path) as process:
        serving = json.loads(await line_of(process))
        host, _, port = serving["address"].rpartition(":")
        assert serving["event"] == "serving" and host == "127.0.0.1", serving
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()


@pytest.mark.parametrize("listen", ["here", "127.0.0.1:99999", "127.0.0.1:http"])
async def test_an_invalid_address_is_refused(listen: str, tmp_path: Path) -> None:
    # gRPC would serve a port above 65535 modulo 65536.
    code, error = await coordinator("--listen", listen, "--data-dir", str(tmp_path))
    assert code == 2 and "argument --listen" in error, error


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, error = await coordinator("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert code == 1 and f"--data-dir: {tmp_path / 'file'} cannot be written" in error, error
    assert "Traceback" not in error


async def test_a_coordinator_whose_port_is_taken_names_the_holder_and_begins_no_attempt_of_its_run(
    tmp_path: Path,
) -> None:
    record = RunRecord("left", tmp_path / "left", state=RunState.RUNNING, coordinator="this")
    record.folder.mkdir()
    record.save()
    record.save_config(run_config())
    before = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, error = await coordinator("--listen", f"127.0.0.1:{port}", "--name", "this", "--data-dir", str(tmp_path))
    (line,) = error.splitlines()
    assert code == 1 and line.startswith(f"cannot listen on 127.0.0.1:{port}: port {port} is in use by "), error
    assert f"(pid {os.getpid()})" in line, error
    after = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    assert after == before, f"the run was touched: {after.keys() - before.keys() or after}"


async def test_an_error_of_telemetry_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as holder:
        port = str(holder.getsockname()[1])
        options = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
        for code, error in (
            await coordinator(*options, "--metrics-port", port),
            await coordinator(*options, SHOAL_METRICS_PORT=port),
            await coordinator(*options, "--log-file", "/proc/nowhere/coordinator.log"),
            await coordinator(*options, SHOAL_LOG_LEVEL="loud"),
        ):
            assert code == 1 and "Traceback" not in error, error
            assert port in error or "--log-file" in error or "SHOAL_LOG_LEVEL is 'LOUD'" in error, error
