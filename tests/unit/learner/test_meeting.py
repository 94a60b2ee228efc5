"""Ranks that are started again meet where nothing is left of those before."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from services.learner.meeting import fresh_part

SOON = timedelta(seconds=20)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that outlives the ranks, as torchrun's does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def met(port: int, size: int) -> list[dist.Store]:
    """One start of all ranks, the last of them first."""

    def join(rank: int) -> dist.Store:
        client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=SOON)
        return fresh_part(client, rank=rank, size=size, timeout=SOON)

    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(join, reversed(range(size))))


def test_each_start_of_the_ranks_has_a_part_of_the_store_to_itself(port: int) -> None:
    for start in range(3):
        parts = met(port, 3)
        assert not any(part.check(["address"]) for part in parts), f"start {start} sees what was said before it"
        parts[0].set("address", f"of start {start}")
        assert {part.get("address") for part in parts} == {f"of start {start}".encode()}


def test_a_rank_that_does_not_come_is_named(port: int) -> None:
    client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=SOON)
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] did not come within 1 s"):
        fresh_part(client, rank=0, size=3, timeout=timedelta(seconds=1))
