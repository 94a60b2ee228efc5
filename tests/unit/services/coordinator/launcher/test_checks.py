"""Checks of a machine before a process is started."""

import os
import socket
from collections.abc import Iterator

import pytest

from services.coordinator.launcher.checks import check_port, check_ports
from shoal.errors import FailedPrecondition, InvalidArgument
from tests.support.configs import run_config
from tests.support.local_stack import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_named_with_its_field(taken_port: int) -> None:
    taken = rf"launch\.coordinator_port: port {taken_port} .*\(pid {os.getpid()}\)"
    with pytest.raises(FailedPrecondition, match=taken) as caught:
        check_port(taken_port, "launch.coordinator_port")
    assert caught.value.reason == "PORT_IN_USE"


def test_port_0_is_never_in_use() -> None:
    check_port(0, "launch.coordinator_port")


def test_one_port_for_two_services_is_refused() -> None:
    port = free_port()
    config = run_config(launch={"coordinator_port": port}, weights={"store_port": port})
    with pytest.raises(InvalidArgument, match=rf"weights.store_port: port {port} .*launch.coordinator_port"):
        check_ports(config)
    check_ports(run_config())
