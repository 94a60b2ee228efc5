"""Beats between processes and threads, over the stores of torch."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from services.learner.ranks import beats
from services.learner.ranks.beats import SILENT_S, Listener, begin_beats
from services.learner.ranks.process_group import ProcessGroup
from tests.support.waiting import block_until


def rank_of(number: int, store: Any, size: int = 3) -> ProcessGroup:
    """A rank without collectives."""
    group = ProcessGroup.__new__(ProcessGroup)
    group.rank, group.size, group._store = number, size, store
    return group


def test_a_rank_is_silent_once_its_last_beat_is_old_and_not_before_whatever_its_clock_says() -> None:
    store, now = dist.HashStore(), 1000.0
    listener = Listener(rank_of(0, store), now=lambda: now)
    rank_of(1, store).beat()
    assert listener.silent_rank() is None
    now += SILENT_S - 1
    rank_of(1, store).beat()
    assert listener.silent_rank() is None
    now += 1
    assert listener.silent_rank() == 2, "it never beat"
    rank_of(2, store).beat()
    assert listener.silent_rank() is None
    now += SILENT_S - 1
    rank_of(2, store).beat()
    assert listener.silent_rank() == 1


# The beats of a rank whose main thread waits, as in a collective.
RANK = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from services.learner.ranks import beats
from services.learner.ranks.process_group import ProcessGroup
beats.BEAT_S = 0.01
group = ProcessGroup.__new__(ProcessGroup)
group.rank, group.size = 1, 2
group._store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=60))
beats.begin_beats(group)
time.sleep(600)
"""


def test_a_stopped_process_beats_no_more_until_it_goes_on() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    leader = rank_of(0, store, size=2)
    with subprocess.Popen([sys.executable, "-c", RANK, str(store.port)]) as rank:
        try:
            block_until(lambda: leader.last_beats()[1], "the rank beats")

            def goes_on() -> bool:
                before = leader.last_beats()
                block_until(lambda: leader.last_beats() != before, "it beats on")
                return True

            assert goes_on()
            os.kill(rank.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
            times = iter(range(0, 10_000, 10))
            listener = Listener(leader, now=lambda: float(next(times)))
            looks = int(SILENT_S) // 10 + 2  # One more, for a beat that was on its way.
            assert 1 in [listener.silent_rank() for _ in range(looks)]
            os.kill(rank.pid, signal.SIGCONT)
            assert goes_on()
        finally:
            rank.kill()


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
