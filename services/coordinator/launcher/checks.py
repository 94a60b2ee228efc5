"""Checks of this machine's ports and folder before a process starts."""

import errno
import os
import socket
from pathlib import Path

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from shoal.network import holder_of, reserved_socket


def check_port(port: int, field: str, host: str = "127.0.0.1") -> None:
    """Raises `FailedPrecondition` if a fixed port is in use. Port 0 means any free port."""
    if port == 0:
        return
    reserve_port(port, field, host).close()


def reserve_port(port: int, field: str, host: str) -> socket.socket:
    """Reserves a port (0 means any free port) while the socket is open; see `reserved_socket`.

    Raises `FailedPrecondition` if the port is in use.
    """
    try:
        return reserved_socket(host, port)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        reason = f"is in use {holder_of(port)}" if is_taken else f"cannot be used: {error.strerror}"
        raise FailedPrecondition(
            f"{field}: port {port} {reason}; choose another port, or 0 for any free port",
            reason=ErrorReason.PORT_IN_USE,
        ) from None


def check_ports(config: RunConfig) -> None:
    """Raises `FailedPrecondition` for a fixed port in use, and `InvalidArgument` for a port that is set twice."""
    coordinator_port, store_port = config.launch.coordinator_port, config.weights.store_port
    check_port(coordinator_port, "launch.coordinator_port")
    check_port(store_port, "weights.store_port", host="")
    if coordinator_port and coordinator_port == store_port:
        raise InvalidArgument(
            f"weights.store_port: port {store_port} is also launch.coordinator_port; on one machine the two ports "
            "must differ: choose another port, or 0 for any free port"
        )


def check_folder(data_dir: Path) -> None:
    """Creates the folder. Raises `FailedPrecondition` if it cannot be written, `ResourceExhausted` for a full disk."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        probe = data_dir / f".write-test-{os.getpid()}"
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ResourceExhausted(
                f"--data-dir: the disk of {data_dir} is full; free some space", reason=ErrorReason.DISK_FULL
            ) from None
        raise FailedPrecondition(
            f"--data-dir: {data_dir} cannot be written: {error.strerror}; choose another folder",
            reason=ErrorReason.FOLDER,
        ) from None
