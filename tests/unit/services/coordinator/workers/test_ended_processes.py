import asyncio
from typing import Any

import grpc
import pytest

from services.coordinator.workers import ended_processes
from services.coordinator.workers.ended_processes import until_gone
from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import WorkerRegistry
from shoal.network import listening_socket
from shoal.v1 import worker_pb2

READY, BROKEN = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_processes, "POLL_S", 0.0)


def _member(address: str, channel: Any) -> Member:
    return Member(WorkerRegistry().register("learner-0", worker_pb2.WORKER_KIND_LEARNER, address, 0), channel, None)


class _Channel:
    """A channel with the states of a list; the test ends with the list."""

    def __init__(self, *states: grpc.ChannelConnectivity) -> None:
        self._states = iter(states)
        self.num_asked = 0

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        assert try_to_connect, "an idle channel stays idle"
        self.num_asked += 1
        return next(self._states)


def _closed_port() -> int:
    with listening_socket("127.0.0.1", 0) as probe:
        return int(probe.getsockname()[1])


async def test_a_process_is_gone_once_its_port_refuses_a_few_connections_in_a_row() -> None:
    channel = _Channel(READY, BROKEN, BROKEN, READY, BROKEN, BROKEN, BROKEN)
    await until_gone(_member(f"127.0.0.1:{_closed_port()}", channel))
    assert channel.num_asked == 7, "two refusals before it was connected again count"


async def test_a_process_that_still_listens_is_not_gone_however_often_its_connections_break() -> None:
    with listening_socket("127.0.0.1", 0) as listening:
        channel = _Channel(*[BROKEN] * 10)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await until_gone(_member(f"127.0.0.1:{listening.getsockname()[1]}", channel))


@pytest.mark.parametrize("address", ["nowhere.invalid:7000", "[2001:db8::1]:7000"])
async def test_a_network_that_fails_says_nothing_about_a_process(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_connection(host: str, port: int) -> Any:
        raise OSError(113, "No route to host") if host.startswith("nowhere") else TimeoutError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await until_gone(_member(address, _Channel(*[BROKEN] * 10)))
