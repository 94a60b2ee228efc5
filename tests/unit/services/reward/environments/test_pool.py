"""The places in the processes of an environment."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from services.reward.environments.pool import EnvironmentPool


@pytest.fixture
def child() -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield
        process.kill()


def last_leaves(*, is_built_in: bool) -> list[str]:
    """Returns why this very process is replaced when the last episode has left it."""
    whys: list[str] = []
    code: Any = SimpleNamespace(is_built_in=is_built_in, memory_bytes=1 << 50)
    process: Any = SimpleNamespace(num_episodes=1, is_lost=False, is_private=False, pid=os.getpid(), kill=whys.append)
    EnvironmentPool(code, 16).leave(process)
    return whys


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(("is_built_in", "whys"), [(False, ["its episodes left processes behind"]), (True, [])])
def test_children_that_stay_end_a_process_without_a_look_at_every_process_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, is_built_in: bool, whys: list[str]
) -> None:
    def fail(*_: object) -> NoReturn:
        pytest.fail("the event loop waits for a look at every process")

    monkeypatch.setattr(psutil, "pids", fail)
    monkeypatch.setattr(psutil.Process, "children", fail)
    assert last_leaves(is_built_in=is_built_in) == whys
