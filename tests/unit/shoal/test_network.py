"""Addresses of this machine."""

import os
import socket

import pytest

from shoal.network import (
    address_toward,
    holder_of,
    host_of,
    is_loopback,
    is_wildcard,
    listening_socket,
    reserved_socket,
)


def test_the_address_toward_loopback_is_loopback() -> None:
    assert address_toward("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.3.2.1", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("10.0.0.1", False, False),
        ("0.0.0.0", False, True),
        ("0", False, True),
        ("::", False, True),
        ("::ffff:0.0.0.0", False, True),
        ("", False, True),
        ("no-such-host.invalid", False, False),
    ],
)
def test_loopback_and_every_interface_are_told_apart(host: str, loopback: bool, wildcard: bool) -> None:
    assert (is_loopback(host), is_wildcard(host)) == (loopback, wildcard)


@pytest.mark.parametrize(
    ("address", "host"),
    [("[fd00::7]:9000", "fd00::7"), ("gen-0:7000", "gen-0"), ("10.0.0.1:0", "10.0.0.1"), (":7", "")],
)
def test_a_host_has_no_brackets(address: str, host: str) -> None:
    assert host_of(address) == host


def test_a_socket_listens_on_one_interface_and_a_taken_port_is_an_error() -> None:
    with listening_socket("localhost", 0) as listening:
        host, port = listening.getsockname()[:2]
        assert host in ("127.0.0.1", "::1") and port > 0
        with pytest.raises(OSError, match="in use"):
            listening_socket(host, port)


def test_a_reserved_port_is_given_to_no_other_and_a_server_may_listen_there_again_and_again() -> None:
    with reserved_socket("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        for _ in range(3):
            with listening_socket("127.0.0.1", port) as server:
                socket.create_connection(server.getsockname()).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))


def test_the_process_that_listens_at_a_port_is_named() -> None:
    with listening_socket("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        assert f"(pid {os.getpid()})" in holder_of(port)
        with pytest.raises(OSError, match="in use"):
            reserved_socket("127.0.0.1", port)
    assert f"sport = :{port}" in holder_of(port)
