"""What a process of the engine does before anything else: it ties itself to the process that started it.

A spawned process imports its parent's main module before it reads what it is to do. A generator names this module as
its main one, so that a process of vLLM cannot outlive it, not even in the seconds before vLLM itself is imported and
looks for plug-ins.
"""

import importlib.util
import os
import sys

from shoal.worker.parent import die_with_parent

_PARENT_PID = "SHOAL_ENGINE_PARENT_PID"


def tie_children() -> None:
    """Has every process that multiprocessing spawns from here run this module first."""
    os.environ[_PARENT_PID] = str(os.getpid())
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("services.generator.engine_process")


if __name__ == "__mp_main__":
    die_with_parent(parent_pid=int(os.environ[_PARENT_PID]))
    os.environ[_PARENT_PID] = str(os.getpid())
