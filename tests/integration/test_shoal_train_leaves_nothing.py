"""`kill -9` of `shoal train` ends real engines too: vLLM's processes, the learner's ranks, the verifiers' pool."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0

# Random weights rarely answer right, so steps are skipped for want of a signal; that is as good for this.
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
        said = []
        assert train.stdout is not None
        for line in train.stdout:
            said.append(line)
            if "training from step 0" in line:
                break
        else:
            pytest.fail("the run never began to train:\n" + "".join(said))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            started = psutil.Process(train.pid).children(recursive=True)
            names = " ".join(_command_line(process) for process in started)
            if "EngineCore" in names and names.count("services.learner") >= 2 and "pool_worker" in names:
                break
            # A process that is looked at in the moment of its exec shows no command line.
            assert time.monotonic() < deadline, f"not all processes are among {names}"
            time.sleep(0.2)
    finally:
        train.kill()
        train.communicate()
    gone, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not left, f"{len(left)} of {len(started)} processes outlived the command: {left}"
    assert len(gone) >= 7, gone


def _command_line(process: psutil.Process) -> str:
    """Empty for one that has just ended, as what a service asks of its machine does."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
