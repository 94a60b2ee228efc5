"""The address at which the other services reach this process."""

from shoal.errors import InvalidArgument, Unavailable
from shoal.network import address_toward, host_of, is_wildcard


def advertised_address(*, listen: str, port: int, advertise: str | None, coordinator: str) -> str:
    """Returns the host:port to register. `port` is the port that the server listens on.

    `advertise` has precedence over `listen`. If `listen` is the wildcard address, the host is this machine's address
    toward the coordinator, to which its peers can route.

    Raises Unavailable while the coordinator's name does not resolve, and InvalidArgument for a wildcard `advertise`.
    """
    if advertise:
        host, advertised_port = _split(advertise)
        if is_wildcard(host):
            raise InvalidArgument(f"--advertise {advertise}: no peer can connect to {host}; give this machine's name")
        return _join(host, advertised_port or port)
    host, _ = _split(listen)
    return _join(_host_toward(coordinator) if is_wildcard(host) else host, port)


def listening_interface(listen: str) -> str | None:
    """Returns the address on which a process listens for calls and for weights; None if it listens on every address."""
    host = host_of(listen)
    return None if is_wildcard(host) else host


def advertised_host(advertise: str | None) -> str | None:
    """Returns the host of `advertise` without its port; None if nothing is advertised."""
    return _split(advertise)[0] if advertise else None


def _host_toward(peer: str) -> str:
    host, port = _split(peer)
    try:
        return address_toward(host, port or 1)
    except OSError as error:
        raise Unavailable(f"no route to the coordinator at {peer}: {error.strerror}") from error


def _split(address: str) -> tuple[str, int | None]:
    """Returns the host without brackets, and the port if the text has a port."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:]) if rest else None
    host, colon, port = address.rpartition(":")
    return (host, int(port)) if colon else (address, None)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
