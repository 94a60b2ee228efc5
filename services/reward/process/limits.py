"""Limits of processes that run verifiers."""

import logging
import resource
import signal
import warnings

from shoal.worker.parent import die_with_parent

# A completion can make a computer algebra system build numbers endlessly. Stop it before the machine's memory is full.
MEMORY_LIMIT_BYTES = 4 << 30


def limit_process(*, parent_pid: int, memory_bytes: int = MEMORY_LIMIT_BYTES) -> None:
    """Ties the process to its parent, and limits its memory."""
    die_with_parent(parent_pid=parent_pid)
    # A signal to the process group is for the parent, which drains first and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
