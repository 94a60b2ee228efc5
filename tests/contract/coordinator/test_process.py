"""A coordinator process prints its address once it serves; one that cannot start prints the reason, and ends."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.coordinator.store.run_record import RunRecord, RunState
from tests.support.configs import run_config
from tests.support.waiting import PATIENCE_S


def coordinator(*options: str, **environment: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "services.coordinator", *options],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, ended.stderr


def test_a_coordinator_on_a_free_port_prints_its_address(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.coordinator", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            serving = json.loads(process.stdout.readline())
            host, _, port = serving["address"].rpartition(":")
            assert serving["event"] == "serving" and host == "127.0.0.1", serving
            socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
        finally:
            process.terminate()


@pytest.mark.parametrize("listen", ["here", "127.0.0.1:99999", "127.0.0.1:http"])
def test_an_invalid_address_is_refused(listen: str, tmp_path: Path) -> None:
    # gRPC would serve a port above 65535 modulo 65536.
    code, error = coordinator("--listen", listen, "--data-dir", str(tmp_path))
    assert code == 2 and "argument --listen" in error, error


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, error = coordinator("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert code == 1 and f"--data-dir: {tmp_path / 'file'} cannot be written" in error, error
    assert "Traceback" not in error


def test_a_coordinator_whose_port_is_taken_names_the_holder_and_begins_no_attempt_of_its_run(tmp_path: Path) -> None:
    record = RunRecord("left", tmp_path / "left", state=RunState.RUNNING, coordinator="this")
    record.folder.mkdir()
    record.save()
    record.save_config(run_config())
    before = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, error = coordinator("--listen", f"127.0.0.1:{port}", "--name", "this", "--data-dir", str(tmp_path))
    assert code == 1 and f"cannot listen on 127.0.0.1:{port}: port {port} is in use by " in error, error
    assert f"(pid {os.getpid()})" in error, error
    after = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    assert after == before, f"the run was touched: {after.keys() - before.keys() or after}"


def test_an_error_of_telemetry_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        options = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
        for code, error in (
            coordinator(*options, "--metrics-port", port),
            coordinator(*options, SHOAL_METRICS_PORT=port),
            coordinator(*options, "--log-file", "/proc/nowhere/coordinator.log"),
            coordinator(*options, SHOAL_LOG_LEVEL="loud"),
        ):
            assert code == 1 and "Traceback" not in error, error
            assert port in error or "--log-file" in error or "SHOAL_LOG_LEVEL is 'LOUD'" in error, error
