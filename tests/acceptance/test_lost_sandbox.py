"""A run with real engines whose code verifier loses its sandbox: `shoal train`, `shoal run resume`.

`tests/contract/test_lost_sandbox.py` is the same with a scripted generator and learner.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.reward.verifiers import code
from tests.integration.stack import SHOAL, LocalStack, write_config
from tests.tiny_model import make_tiny_model

NUM_STEPS = 16


def write_data(path: Path) -> Path:
    """Digits that a random model guesses now and then, and a program that it never writes: both have to be judged."""
    rows = [
        {
            "messages": [{"role": "user", "content": f"{number}: say {number % 10}"}],
            "ground_truth": [str(number % 10), ["assert True"]],
            "dataset": ["gsm8k", "code"],
        }
        for number in range(64)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def path_with(bwrap: Path) -> str:
    """A PATH with all programs of the system's but bubblewrap, which is the one at `bwrap`."""
    bwrap.parent.mkdir()
    others = []
    for folder in os.environ["PATH"].split(os.pathsep):
        if not (Path(folder) / "bwrap").exists():
            others.append(folder)
            continue
        for program in Path(folder).iterdir():
            link = bwrap.parent / program.name
            if program.name != "bwrap" and not link.is_symlink():
                link.symlink_to(program)
    return os.pathsep.join([str(bwrap.parent), *others])


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    model = tmp_path / "model"
    make_tiny_model(model)
    config = write_config(
        tmp_path / "run.toml",
        {
            "model": {"path": str(model)},
            "data": {"sources": [{"path": str(write_data(tmp_path / "data.jsonl"))}], "max_prompt_tokens": 64},
            "sampling": {"max_completion_tokens": 32},
            "grpo": {"group_size": 8, "groups_per_step": 4, "max_staleness": 1, "max_skipped_steps": 50},
            "generator": {"dtype": "float32", "cpu_kv_cache_gib": 0.25, "max_num_seqs": 32},
            "learner": {"compute_dtype": "float32", "learning_rate": 1e-3, "pack_tokens": 1024},
            "weights": {"timeout_s": 60.0, "ready_timeout_s": 20.0},
            "run": {"num_steps": NUM_STEPS},
        },
    )
    bwrap = tmp_path / "bin" / "bwrap"
    path = path_with(bwrap)
    real = shutil.which("bwrap")
    assert real is not None
    bwrap.symlink_to(real)
    stack = LocalStack(tmp_path / "runs", "lost", str(config), "--name", "lost", environment={"PATH": path})
    yield stack
    stack.end()


def num_steps(stack: LocalStack) -> int:
    return len(stack.metrics())


@pytest.mark.timeout(900)
def test_a_real_run_that_loses_its_sandbox_pauses_and_goes_on_without_losing_a_group(
    stack: LocalStack, tmp_path: Path
) -> None:
    stack.until_step(3)
    bwrap = tmp_path / "bin" / "bwrap"
    real = bwrap.resolve()
    bwrap.unlink()
    for sandbox in stack.children("sandbox/inside/main.py"):
        # What ran in one is gone with it, before its own turn.
        with contextlib.suppress(psutil.NoSuchProcess):
            if sandbox.name() == "bwrap":
                sandbox.kill()
    outage = stack.until("the outage", lambda event: event["kind"] == "reward_outage", 120)
    assert outage["attributes"]["verifier"] == "code" and "bubblewrap is not installed" in outage["message"], outage
    stack.until("the pause", lambda e: e["kind"] == "state" and e["attributes"]["state"] == "PAUSED", 60)
    time.sleep(5)
    steps_before = num_steps(stack)
    time.sleep(10)
    assert num_steps(stack) == steps_before < NUM_STEPS, f"{num_steps(stack)} steps, {steps_before} in the pause"
    print(f"paused after {steps_before} steps: {outage['message']}")

    bwrap.symlink_to(real)
    subprocess.run(
        [str(SHOAL), "run", "resume", "--coordinator", stack.coordinator_address()], check=True, capture_output=True
    )
    assert stack.wait(400) == 0, stack.tail()
    kinds = Counter(event["kind"] for event in stack.events())
    assert kinds["reward_outage"] == 1 and not kinds["group_dropped"], kinds
    rows = stack.metrics()
    assert len(rows) == NUM_STEPS
    assert {row["val/code_failed_rate"] for row in rows} == {row["val/unscored_rate"] for row in rows} == {0.0}
    with sqlite3.connect(stack.folder / "ledger.sqlite") as ledger:
        states = Counter(ledger.execute("SELECT state, drop_reason FROM groups").fetchall())
        numbers = [number for (number,) in ledger.execute("SELECT order_number FROM groups ORDER BY order_number")]
    print(f"groups by fate: {dict(states)}; code took {rows[-1]['time/code_scoring'] * 1e3:.0f} ms in the mean")
    assert not [key for key in states if key[1] == "not_scored"], f"groups were lost to the outage: {states}"
    assert numbers == list(range(len(numbers))), "an order number is missing"
    assert not stack.left_over()
