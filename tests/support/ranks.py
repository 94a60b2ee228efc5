"""Groups of learner ranks as forks of one process, so that what they import is imported once.

With the arguments SIZES MODULE ARGUMENT... `main` forks for each size of SIZES ("1,3") that many processes, with the
environment that torchrun would give them. Each calls `main()` of the module, with the arguments in `sys.argv`. Ends
with 1 as soon as one of them fails.
"""

import importlib
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable

from shoal.worker.parent import die_with_parent
from tests.support.processes import ONE_THREAD
from tests.support.warm_process import WarmProgram

_IMPORTED_LATER = (
    "services.learner.commands",
    "deepspeed.runtime.zero.muon.original_muon",
    "peft",
    "transformers.models.llama.modeling_llama",
)
"""What a learner imports, in part with its first model. It takes seconds."""
_LONGEST_S = 800.0


def run_ranks(module: str, sizes: tuple[int, ...], *arguments: str) -> None:
    """Runs groups of ranks side by side to their ends; fails with their log if one fails."""
    with tempfile.TemporaryFile("w+") as log:
        program = WarmProgram(
            *("tests.support.ranks", "tests.support.ranks"),
            *(",".join(map(str, sizes)), module, *arguments),
            environment=ONE_THREAD,
            output=log,
            errors=log,
        )
        try:
            exit_code = program.wait(_LONGEST_S)
        finally:
            program.kill()
        log.seek(0)
        assert exit_code == 0, log.read()[-4000:]


def warm() -> None:
    for name in _IMPORTED_LATER:
        importlib.import_module(name)


def main() -> int:
    sizes = [int(size) for size in sys.argv[1].split(",")]
    sys.argv = sys.argv[2:]
    ranks_main = importlib.import_module(sys.argv[0]).main
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in sizes]
    pids = {
        _fork(ranks_main, rank, size, listener)
        for size, listener in zip(sizes, listeners, strict=True)
        for rank in range(size)
    }
    # After the forks: a store has a thread, and a fork has none of its parent's. Those who came first wait for it.
    from torch.distributed import TCPStore

    stores = [
        TCPStore(
            "127.0.0.1", _port(listener), is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        for listener in listeners
    ]
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if status:
            return 1  # The others end with this process.
    del stores
    return 0


def _port(listener: socket.socket) -> int:
    return listener.getsockname()[1]


def _fork(ranks_main: Callable[[], None], rank: int, size: int, listener: socket.socket) -> int:
    parent_pid = os.getpid()
    if pid := os.fork():
        return pid
    die_with_parent(parent_pid=parent_pid)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port(listener)),
    }
    exit_code = 1
    try:
        ranks_main()
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
