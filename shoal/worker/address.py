"""Under which address the other services reach this process."""

import socket

from shoal.errors import InvalidArgument, Unavailable

_ANY = frozenset({"0.0.0.0", "::", ""})


def advertised_address(*, listen: str, port: int, advertise: str | None, coordinator: str) -> str:
    """host:port to register. `port` is the one that `listen` got.

    What `advertise` leaves open comes from `listen`, unless that is every address: then it is the address of this
    machine from which packets leave toward the coordinator, which its peers can route to.

    Raises Unavailable while the coordinator's name does not resolve, and InvalidArgument if `advertise` is an
    address that means every address.
    """
    if advertise:
        host, advertised_port = _split(advertise)
        if host in _ANY:
            raise InvalidArgument(f"--advertise {advertise}: nobody can connect to {host}; give this machine's name")
        return _join(host, advertised_port or port)
    host, _ = _split(listen)
    return _join(_host_toward(coordinator) if host in _ANY else host, port)


def _host_toward(peer: str) -> str:
    host, port = _split(peer)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # Chooses a route; UDP sends nothing.
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(f"no route to the coordinator at {peer}: {error.strerror}") from error


def _split(address: str) -> tuple[str, int | None]:
    """host without brackets, and the port if there is one."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:]) if rest else None
    host, colon, port = address.rpartition(":")
    return (host, int(port)) if colon else (address, None)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
