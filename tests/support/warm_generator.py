"""The generator's program in a fork of a process that has imported vLLM; its engine's process is such a fork too."""

import fcntl
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import Any
from unittest import mock

from services.generator.vllm_start import import_vllm
from shoal.worker import reexec
from shoal.worker.parent import die_with_parent
from tests.support.warm_process import MAX_BYTES

_IMPORTED_LATER = (
    "services.generator.adapter_engine",
    "services.generator.deterministic_engine",
    "services.generator.service",
    "services.generator.vllm_engine",
    "services.generator.workers.adapter_receiver",
    "services.generator.workers.weight_transfer",
    "shoal.worker.process",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
_FREE_FILE = 500
"""Greater than the number of every file that a process of the engine inherits."""


def warm() -> None:
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # As a generator does before it spawns its engine on a CPU.
    import_vllm()
    for name in _IMPORTED_LATER:
        importlib.import_module(name)
    del os.environ["VLLM_RPC_BASE_PATH"]  # It follows from the folder of temporary files of each generator.


def main() -> int:
    """Runs `python -m services.generator`. Forks the process of the engine before there are threads.

    `services.generator.__main__` itself is a program too, which spawns that process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    generator_pid = os.getpid()
    if (engine_pid := os.fork()) == 0:
        ours.close()
        die_with_parent(parent_pid=generator_pid)
        _become_engine(theirs)
    theirs.close()
    spawn = util.spawnv_passfds

    def spawn_engine(path: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
        if "--multiprocessing-fork" not in arguments:
            return spawn(path, arguments, files)
        request = {"program": arguments[-2], "files": list(files), "environment": dict(os.environ)}
        socket.send_fds(ours, [json.dumps(request).encode()], files)
        return engine_pid

    # That child is not one of an earlier program.
    with mock.patch.object(util, "spawnv_passfds", spawn_engine), mock.patch.object(reexec, "_reap_earlier_children"):
        exit_code: int = importlib.import_module("services.generator.__main__").main()
        return exit_code


def _become_engine(connection: socket.socket) -> None:
    """Waits until the generator spawns a process, and does what that process would do."""
    message, files, _, _ = socket.recv_fds(connection, MAX_BYTES, 100)
    connection.close()
    request: dict[str, Any] = json.loads(message or "null") or os._exit(0)
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE_FILE) for file in files]
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
    os.closerange(_FREE_FILE, _FREE_FILE + len(files))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", "--multiprocessing-fork"]
    exit_code = 1
    try:
        exec(request["program"], {})
    except SystemExit as ended:
        exit_code = int(ended.code or 0)
    finally:
        os._exit(exit_code)
