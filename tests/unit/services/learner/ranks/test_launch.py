"""The launcher of ranks notices how they end: real processes that do little."""

import queue
import subprocess
import sys
from typing import Any

import pytest

from services.learner.ranks import launch
from services.learner.ranks.launch import Followers, let_segments_grow

ENDS: dict[str, tuple[str, str]] = {
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "failed": ("import sys; sys.exit(1)", "ended with exit code 1"),
}


def followers(monkeypatch: pytest.MonkeyPatch, *programs: str) -> Followers:
    """Ranks from 1 that run some programs in place of the learner's."""
    waiting, start = iter(programs), subprocess.Popen

    def start_program(command: list[str], **options: Any) -> Any:
        return start([sys.executable, "-c", next(waiting)], env=options["env"])

    monkeypatch.setattr("services.learner.ranks.launch.subprocess.Popen", start_program)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # The launcher sets them, and the test restores them.
    monkeypatch.setattr(launch, "_NOTICE_S", 60.0)
    return Followers(len(programs) + 1, [])


@pytest.mark.parametrize("end", ENDS)
def test_the_rank_that_died_is_the_reason_of_the_error_that_its_death_causes(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    program, how = ENDS[end]
    ranks = followers(monkeypatch, "import time; time.sleep(600)", program)
    deaths: queue.Queue[str] = queue.Queue()
    try:
        ranks.watch(deaths.put)
        death = f"learner rank 2 (pid {ranks.pids[1]}) {how}"
        assert ranks.explain("RuntimeError: closed by peer") == death
        assert deaths.get(timeout=60) == death and deaths.empty()
    finally:
        monkeypatch.setattr(launch, "_STOP_S", 0.0)
        ranks.close()


def test_an_error_that_no_rank_died_of_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = followers(monkeypatch, "")
    monkeypatch.setattr(launch, "_NOTICE_S", 0.01)
    deaths: list[str] = []
    ranks.watch(deaths.append)
    ranks.close()
    assert ranks.explain("OutOfMemoryError: CUDA") == "OutOfMemoryError: CUDA"
    assert not deaths, "a rank that leaves in order is no death"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_grows_its_segments_unless_the_user_sets_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(launch.os, "environ", environment)
    let_segments_grow()
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    environment.clear()
    environment[name] = "max_split_size_mb:64"
    let_segments_grow()
    assert environment == {name: "max_split_size_mb:64"}
