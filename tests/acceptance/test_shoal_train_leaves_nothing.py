"""`kill -9` of `shoal train` with real engines ends every process: vLLM, the learner's ranks, the verifier pool."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.repository import ROOT
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PATIENCE_S = 120.0

# Random weights rarely answer correctly, so steps are skipped for lack of signal. That does not matter here.
CONFIG = """
[run]
num_steps = 1000
[model]
path = "{model}"
[[data.sources]]
task = "arithmetic"
[data]
max_prompt_tokens = 100
[sampling]
max_completion_tokens = 8
[grpo]
group_size = 4
groups_per_step = 2
max_skipped_steps = 1000
[generator]
dtype = "float32"
cpu_kv_cache_gib = 0.1
[learner]
compute_dtype = "float32"
[launch]
num_learner_ranks = 2
"""


def test_kill_dash_nine_of_the_command_leaves_no_engine_behind(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(model=make_tiny_model(tmp_path / "model")))
    command = [sys.executable, "-c", "from services.coordinator.cli import main; main()", "train", str(config)]
    train = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "runs")], cwd=ROOT, env={**os.environ, "SHOAL_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        lines = []
        assert train.stdout is not None
        for line in train.stdout:
            lines.append(line)
            if "training from step 0" in line:
                break
        else:
            pytest.fail("the run never began to train:\n" + "".join(lines))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            started = psutil.Process(train.pid).children(recursive=True)
            names = " ".join(_command_line(process) for process in started)
            if "EngineCore" in names and names.count("services.learner") >= 2 and "reward.pool.worker" in names:
                break
            # A process shows no command line at the moment of its exec.
            assert time.monotonic() < deadline, f"not all processes are among {names}"
            time.sleep(0.2)
    finally:
        train.kill()
        train.communicate()
    gone, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not left, f"{len(left)} of {len(started)} processes outlived the command: {left}"
    assert len(gone) >= 7, gone


def _command_line(process: psutil.Process) -> str:
    """Returns the command line; empty for a process that has just ended, as short commands of a service do."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
