"""Folders that are written completely or not at all."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted, ShoalError
from shoal.full_memory import is_out_of_memory

_FULL = (errno.ENOSPC, errno.EDQUOT)


def storage_error(error: OSError, folder: Path) -> ShoalError:
    """Makes the error for a failed write: `ResourceExhausted` for a full disk or full memory, otherwise
    `FailedPrecondition`.
    """
    if is_out_of_memory(error):
        return ResourceExhausted(
            f"the learner's memory is full, so {folder} cannot be written: use a machine with more memory, or raise "
            f"launch.num_learner_ranks with learner.zero_stage 3. The error: {error.strerror}"
        )
    if error.errno in _FULL or _is_full(folder):
        return ResourceExhausted(
            f"the disk of {folder} is full: free some space, or give the learner another --data-dir",
            reason=ErrorReason.DISK_FULL,
            metadata={"folder": str(folder)},
        )
    return FailedPrecondition(
        f"{folder} cannot be written: {error.strerror or error}", reason=ErrorReason.STORAGE_NOT_WRITABLE
    )


def _is_full(folder: Path) -> bool:
    """Returns whether less than a megabyte is free. Torch's writer does not report the reason of a failure."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free < 1 << 20


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turns an OSError inside the context into `ResourceExhausted` (full disk or memory) or `FailedPrecondition`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, folder) from error


def partial_of(folder: Path) -> Path:
    """Returns the path that `folder` has while it is being written."""
    return folder.with_name(folder.name + ".partial")


def start_folder(folder: Path) -> Path:
    """Makes the empty partial folder in which to write the files of `folder`."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def finish_folder(folder: Path) -> None:
    """Renames the partial folder to `folder`, and replaces an earlier folder of that name."""
    delete_folder(folder)
    partial_of(folder).rename(folder)
    sync(folder.parent)


def delete_folder(folder: Path) -> None:
    """Deletes a folder. Even if the deletion is interrupted, no part of the folder keeps its name."""
    deleted = folder.with_name(folder.name + ".deleted")
    shutil.rmtree(deleted, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(deleted)
    shutil.rmtree(deleted, ignore_errors=True)


def discard_folder(folder: Path) -> None:
    """Deletes the partial folder, and its parent if the parent is then empty."""
    shutil.rmtree(partial_of(folder), ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def sync(path: Path) -> None:
    """Syncs the contents of a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_files(folder: Path) -> list[str]:
    """Lists the paths of all files below a folder, relative to the folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sha256_of(path: Path) -> str:
    """Computes the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
