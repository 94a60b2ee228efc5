"""What the results of a benchmark depend on: the machine, the versions of packages, the commit."""

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def describe_run(*packages: str) -> dict[str, Any]:
    """Describes the command, the machine, its load, the commit and these packages, for the JSON of a benchmark."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    commit = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return {
        "arguments": shlex.join(sys.argv[1:]),
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_5_min": round(os.getloadavg()[1], 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": subprocess.run(commit, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }
