"""Addresses of this machine."""

import socket


def address_toward(host: str, port: int) -> str:
    """Returns the address of this machine from which packets to `host` leave: peers there can reach it.

    Sends nothing. Raises OSError when there is no route or the name does not resolve.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # Chooses a route; UDP sends nothing.
        return str(probe.getsockname()[0])
