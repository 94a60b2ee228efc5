"""Checks of this machine before a process starts: ports, folder, disk."""

import errno
import os
import shutil
import socket
from pathlib import Path

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from shoal.models.model_folder import model_config

# A checkpoint holds float32 master weights and two float32 moments, and the weights in the compute type.
_CHECKPOINT_BYTES_PER_WEIGHT = 3 * 4 + 4
_EXPORT_BYTES_PER_WEIGHT = 4
_LEDGER_AND_LOGS_BYTES = 64 << 20


def check_port(port: int, field: str, host: str = "127.0.0.1") -> None:
    """Raises `FailedPrecondition` when a fixed port is taken. Port 0 stands for any free one."""
    if port == 0:
        return
    with socket.socket() as probe:
        # As servers do: a port counts as free while its last connections are still closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise FailedPrecondition(
                f"{field}: port {port} {reason}; choose another one, or 0 for any free one",
                reason=ErrorReason.PORT_IN_USE,
            ) from None


def check_ports(config: RunConfig) -> None:
    """Raises `FailedPrecondition` for a fixed port that is taken, `InvalidArgument` for a port that is set twice."""
    coordinator_port, store_port = config.launch.coordinator_port, config.weights.store_port
    check_port(coordinator_port, "launch.coordinator_port")
    check_port(store_port, "weights.store_port", host="")
    if coordinator_port and coordinator_port == store_port:
        raise InvalidArgument(
            f"weights.store_port: port {store_port} is launch.coordinator_port as well; on one machine they have to "
            "differ: choose another one, or 0 for any free one"
        )


def check_folder(data_dir: Path) -> None:
    """Creates the folder. Raises `FailedPrecondition` when it cannot be created or written."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        probe = data_dir / f".write-test-{os.getpid()}"
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ResourceExhausted(
                f"--data-dir: the disk of {data_dir} is full", reason=ErrorReason.DISK_FULL
            ) from None
        raise FailedPrecondition(
            f"--data-dir: {data_dir} cannot be written: {error.strerror}; choose another folder",
            reason=ErrorReason.FOLDER,
        ) from None


def check_disk(data_dir: Path, model_folder: Path, config: RunConfig) -> None:
    """Raises `ResourceExhausted` when the checkpoints and the trained model cannot fit."""
    needed = bytes_needed(model_folder, config)
    free = shutil.disk_usage(data_dir).free
    if free < needed:
        raise ResourceExhausted(
            f"--data-dir: the disk of {data_dir} has {_gib(free)} free, and this run needs about {_gib(needed)} for "
            f"{config.checkpoint.keep_last + 1} checkpoints (checkpoint.keep_last = {config.checkpoint.keep_last}, "
            "and one being written) and the trained model; make room, or choose another --data-dir",
            reason=ErrorReason.DISK_FULL,
        )


def bytes_needed(model_folder: Path, config: RunConfig) -> int:
    """Computes the disk space of a run from the number of its model's weights."""
    element_bytes = 4 if model_config(model_folder).dtype == "float32" else 2
    num_weights = sum(path.stat().st_size for path in model_folder.glob("*.safetensors")) // element_bytes
    checkpoints = (config.checkpoint.keep_last + 1) * _CHECKPOINT_BYTES_PER_WEIGHT
    return num_weights * (checkpoints + _EXPORT_BYTES_PER_WEIGHT) + _LEDGER_AND_LOGS_BYTES


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
