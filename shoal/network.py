"""Addresses of this machine."""

import ipaddress
import socket


def address_toward(host: str, port: int) -> str:
    """Returns the address from which this machine sends to `host`. That host can reach this machine at the address.

    Sends nothing. Raises OSError when there is no route or the name does not resolve.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # Chooses a route; UDP sends nothing.
        return str(probe.getsockname()[0])


def host_of(address: str) -> str:
    """Returns the host of "host:port", without the brackets of IPv6."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def listening_socket(host: str, port: int) -> socket.socket:
    """Opens a socket that listens only on the interface of `host`. A `port` of 0 takes a free port.

    Raises OSError when the port is taken, or the host is not an address of this machine.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), int(address[1])), family=family)


def reserved_socket(host: str, port: int) -> socket.socket:
    """Opens a socket that is bound to a port but never listens; `port` 0 means a free port.

    While the socket is open, Linux gives the port to no process as a free port. A server of this machine may still
    listen on it, repeatedly, because both set SO_REUSEADDR. Raises OSError when another socket listens on it.
    """
    reserved = socket.socket()
    try:
        # With it a port counts as free even while its last connections are closing.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def holder_of(port: int) -> str:
    """Describes the process that listens at a port of this machine, for an error: "by python (pid 42)"."""
    import psutil

    try:
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        pids = [each.pid for each in listening if each.laddr.port == port]
        return next(f"by {psutil.Process(pid).name()} (pid {pid})" for pid in pids if pid)
    except (StopIteration, psutil.Error, OSError):
        return f"by a process that this user may not see (`sudo ss -ltnp sport = :{port}` shows it)"


def is_loopback(host: str) -> bool:
    """Returns whether a host is a loopback address or "localhost", which no other machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Returns whether a server on this host would listen on every interface: "0.0.0.0", "::", "0", ""."""
    if not host:
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # The server itself fails, with the reason.
    return any(_is_unspecified(str(address[0])) for *_, address in found)


def _is_unspecified(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_unspecified
