"""Beats between processes and threads, over the stores of torch."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from services.learner.ranks import beats
from services.learner.ranks.beats import BEAT_S, SILENT_S, Listener, begin_beats, until_silent
from services.learner.ranks.process_group import ProcessGroup
from tests.support.waiting import block_until

NUM_LOOKS = round(SILENT_S / BEAT_S)
"""As many in a row without a new beat show that a rank stands still."""


def rank_of(number: int, store: Any, size: int = 3) -> ProcessGroup:
    group = ProcessGroup.__new__(ProcessGroup)
    group.rank, group.size, group._store = number, size, store
    return group


def test_a_rank_is_silent_after_a_minute_of_looks_without_a_new_beat_whatever_its_clock_says() -> None:
    store = dist.HashStore()
    listener = Listener(rank_of(0, store))

    def look(times: int) -> list[int | None]:
        return [listener.silent_rank() for _ in range(times)]

    rank_of(1, store).beat()
    assert look(NUM_LOOKS) == [None] * NUM_LOOKS, "the first look finds what the others are compared with"
    rank_of(1, store).beat()
    assert look(1) == [2], "it never beat"
    rank_of(2, store).beat()
    assert look(NUM_LOOKS - 1) == [None] * (NUM_LOOKS - 1)
    rank_of(2, store).beat()
    assert look(2) == [1, 1]


# A rank whose main thread waits in a collective for as long as rank 0 computes.
RANK = """
from services.learner.ranks import beats
from services.learner.ranks.process_group import ProcessGroup
beats.BEAT_S = 0.01
group = ProcessGroup.connect()
beats.begin_beats(group)
group.receive_command()
"""


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProcessGroup, int]]:
    """Rank 0 of a real group of two, and the process id of rank 1."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
    own = {"RANK": "0", "LOCAL_RANK": "0"}
    for name, value in (shared | own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    other = {"RANK": "1", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen([sys.executable, "-c", RANK], env=os.environ | other) as rank:
        try:
            yield ProcessGroup.connect(store), rank.pid
        finally:
            rank.kill()
            dist.destroy_process_group()


def test_a_rank_that_waits_in_a_collective_beats_until_its_process_is_stopped(
    ranks: tuple[ProcessGroup, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, pid = ranks

    def goes_on() -> None:
        before = leader.last_beats()
        block_until(lambda: leader.last_beats() != before, "it beats on")

    for _ in range(2 * NUM_LOOKS):  # However long the others take.
        goes_on()
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(beats, "BEAT_S", 0.001)
    assert asyncio.run(until_silent(leader)) == 1
    os.kill(pid, signal.SIGCONT)
    goes_on()


def test_a_rank_beats_on_after_a_beat_that_did_not_reach_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "BEAT_S", 0.01)

    class Gone:
        num_beats = 0

        def beat(self) -> None:
            self.num_beats += 1
            raise RuntimeError("the store is gone")

    group: Any = Gone()
    begin_beats(group)
    block_until(lambda: group.num_beats > 2, "it goes on")
