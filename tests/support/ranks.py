"""Groups of learner ranks as forks of one process, so that what they import is imported once.

Usage: python -m tests.support.ranks SIZES MODULE ARGUMENT... forks for each size of SIZES ("1,3") that many processes,
with the environment that torchrun would give them. Each calls `main()` of the module, with the arguments in `sys.argv`.
Ends with 1 as soon as one of them fails.
"""

import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable

from shoal.worker.parent import die_with_parent
from tests.support.processes import run_together

_IMPORTED_LATER = ("transformers.models.llama.modeling_llama", "deepspeed.runtime.zero.muon.original_muon", "peft")
"""What a learner imports with its first model. It takes seconds."""


def run_ranks(module: str, sizes: tuple[int, ...], *arguments: str) -> None:
    """Runs groups of ranks side by side to their ends; fails with their log if one fails."""
    run_together([[sys.executable, "-m", "tests.support.ranks", ",".join(map(str, sizes)), module, *arguments]])


def main() -> int:
    sizes = [int(size) for size in sys.argv[1].split(",")]
    sys.argv = sys.argv[2:]
    ranks_main = importlib.import_module(sys.argv[0]).main
    for name in _IMPORTED_LATER:
        importlib.import_module(name)
    gc.freeze()  # DeepSpeed collects garbage often, each time through all that was imported.
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


if __name__ == "__main__":
    sys.exit(main())
