"""Ranks that torchrun starts again meet in an empty part of its store."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from services.learner.ranks.process_group import fresh_store

TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a store that outlives the ranks, as torchrun's does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def start_ranks(port: int, size: int) -> list[dist.Store]:

    def join(rank: int) -> dist.Store:
        client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        return fresh_store(client, rank=rank, size=size, timeout=TIMEOUT)

    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(join, reversed(range(size))))


def test_each_start_of_the_ranks_has_a_part_of_the_store_to_itself(port: int) -> None:
    for start in range(3):
        parts = start_ranks(port, 3)
        assert not any(part.check(["address"]) for part in parts), f"start {start} sees keys of an earlier start"
        parts[0].set("address", f"of start {start}")
        assert {part.get("address") for part in parts} == {f"of start {start}".encode()}


def test_a_rank_that_does_not_come_is_named(port: int) -> None:
    client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] .* 1 s"):
        fresh_store(client, rank=0, size=3, timeout=timedelta(seconds=1))
