"""Whether this machine can run kernels in Triton, which come beside plain torch."""

import logging
import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

_log = logging.getLogger(__name__)


def can_run_kernels(device: torch.device) -> bool:
    """Returns whether a device can run kernels in Triton. If a GPU cannot, the log says once what is missing."""
    return device.type == "cuda" and _can_compile()


@cache
def _can_compile() -> bool:
    """Returns whether Triton can compile: it needs a C compiler, to call each kernel."""
    missing = [
        what
        for what, is_there in {
            "the package triton": find_spec("triton") is not None,
            "a C compiler, such as gcc": any((os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang"))),
            "Python's header files": Path(sysconfig.get_path("include"), "Python.h").is_file(),
        }.items()
        if not is_there
    ]
    if missing:
        _log.warning("the learner takes more time and memory on this GPU, since it lacks %s", " and ".join(missing))
    return not missing
