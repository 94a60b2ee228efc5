"""Errors of writes to a disk: a full disk may have room later, but a person has to fix other errors."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted, ShoalError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: Exception) -> bool:
    """Whether a write failed because the disk, or the user's share of it, is full."""
    if isinstance(error, ShoalError):
        return error.reason == ErrorReason.DISK_FULL
    return getattr(error, "errno", None) in _FULL or (isinstance(error, sqlite3.Error) and "full" in str(error))


def write_error(error: OSError | sqlite3.Error, path: Path) -> ShoalError:
    """Makes the error of a write: `ResourceExhausted` for a full disk, else `FailedPrecondition`."""
    if is_full(error):
        return ResourceExhausted(
            f"the disk of {path.parent} is full: {path.name} cannot be written; free some space there",
            reason=ErrorReason.DISK_FULL,
            metadata={"folder": str(path.parent)},
        )
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return FailedPrecondition(
        f"{path} cannot be written: {why}; make {path.parent} writable, and resume the run",
        reason=ErrorReason.FOLDER,
        metadata={"folder": str(path.parent)},
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into the error of `write_error`."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error
