"""`kill -9` at random moments over all processes of the four services, with real engines, and nobody helps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.local_stack import guessing_config, write_config
from tests.support.repository import ROOT

NUM_KILLS = 20


@pytest.mark.timeout(7200)
def test_a_run_ends_in_spite_of_twenty_kills_and_uses_every_prompt_once(tmp_path: Path) -> None:
    config = guessing_config(
        tmp_path,
        grpo={"max_staleness": 1, "keep_zero_signal": True},
        checkpoint={"every_steps": 3},
        launch={"num_learner_ranks": 2, "num_generators": 2},
    )
    path = write_config(tmp_path / "run.toml", config)
    numbers = tmp_path / "kills.json"
    options = ("--kills", str(NUM_KILLS), "--seed", "13", "--data-dir", str(tmp_path / "runs"), "--json", str(numbers))
    done = subprocess.run(
        [sys.executable, "-u", "benchmarks/kills.py", str(path), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    print(done.stdout, done.stderr[-4000:])
    assert done.returncode in (0, 1), f"exit code {done.returncode}"
    measured = json.loads(numbers.read_text())
    assert not measured["problems"], measured["problems"]
    late = [kill for kill in measured["kills"] if kill["took_s"] > kill["bound_s"]]
    assert len(measured["kills"]) == NUM_KILLS and not late, f"{len(late)} kills cost more than their bound: {late}"
