"""The main module of the engine's processes. Each process ends with the process that started it.

A spawned process imports its parent's main module before anything else. A generator names this module as its main
module, so that no process of vLLM outlives the generator, not even before vLLM is imported and loads its plug-ins.
"""

import importlib.util
import os
import sys

from shoal.worker.parent import die_with_parent

_PARENT_PID = "SHOAL_ENGINE_PARENT_PID"


def tie_children() -> None:
    """Makes every process that multiprocessing spawns from this process import this module first."""
    os.environ[_PARENT_PID] = str(os.getpid())
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("services.generator.workers.engine_process")


if __name__ == "__mp_main__":
    die_with_parent(parent_pid=int(os.environ[_PARENT_PID]))
    os.environ[_PARENT_PID] = str(os.getpid())
