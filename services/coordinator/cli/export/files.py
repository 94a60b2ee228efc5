"""Delivery of a model's files to a folder or to any file system of fsspec, such as s3:// and gs://.

A folder of this machine is written under another name and renamed. Elsewhere files appear one by one. No program loads
a model without `config.json` (`adapter_config.json` for an adapter), so this file is written last: until then there is
no model, and afterward the model is complete. `SHA256SUMS` has the digests of all files, in the form of sha256sum(1).
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from services.coordinator.remote.file_systems import file_system, is_local, why_refused
from shoal.error_reasons import ErrorReason
from shoal.errors import AlreadyExists, FailedPrecondition, ResourceExhausted, ShoalError, Unavailable

SUMS = "SHA256SUMS"
CARD = "README.md"
_LAST = ("config.json", "adapter_config.json")
"""The files without which a folder is not a model or an adapter."""


def write_sums(folder: Path) -> None:
    """Writes the digests of a model's files, except the card, which changes with the run."""
    lines = []
    for name in list_names(folder):
        if name not in (SUMS, CARD):
            with (folder / name).open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    (folder / SUMS).write_text("".join(lines))


def deliver(folder: Path, destination: str) -> None:
    """Copies the files of a model, including `SHA256SUMS`, to a folder or a URL, and prints what has been done.

    Does nothing if the same model is already complete there. Raises `AlreadyExists` if other files are there,
    `FailedPrecondition` if the package of the file system, the bucket or the credentials are missing,
    `ResourceExhausted` if the disk is full, and `Unavailable` if the upload breaks off.
    """
    files, root = file_system(destination, "--to")
    try:
        _deliver(files, root, folder, destination)
    except ShoalError:
        raise
    except Exception as error:  # Each file system has its own errors.
        if why := why_refused(error):
            raise FailedPrecondition(f"{destination} cannot be written: {why} ({error})") from error
        raise Unavailable(
            f"{destination} could not be written: {type(error).__name__}: {error}. The files there lack "
            f"{_last(folder)}, so no program takes them for a model; repeat the command to complete the model"
        ) from error


def check_destination(destination: str, title: str, *, is_adapter: bool) -> None:
    """Refuses a destination that has other files. Call it before the model is written, which may take minutes.

    `title` is the line of the card that names the model. For a model with that title at the destination, `deliver`
    decides by the digests whether it is the same model. Raises `AlreadyExists`, `FailedPrecondition`,
    `Unavailable`, and the errors of `file_system`.
    """
    files, root = file_system(destination, "--to")
    try:
        found = _found(files, root)
        titles = files.cat_file(f"{root}/{CARD}").decode(errors="replace").splitlines() if CARD in found else []
    except Exception as error:
        if why := why_refused(error):
            raise FailedPrecondition(f"{destination} cannot be read: {why} ({error})") from error
        raise Unavailable(f"{destination} could not be read: {type(error).__name__}: {error}") from error
    _check_no_file(found, destination)
    if _LAST[is_adapter] in found:
        if SUMS not in found or (titles and title not in titles):
            raise _another_model(destination)
    elif found and is_local(files):
        raise _other_files(destination, found)


def _found(files: Any, root: str) -> list[str]:
    """Lists the files below a path, by their relative paths. If the path is a file, the relative path is empty."""
    return [name.removeprefix(root).lstrip("/") for name in files.find(root)]


def _check_no_file(found: Collection[str], destination: str) -> None:
    if "" in found:
        raise AlreadyExists(f"{destination} is a file: name a folder with --to")


def _another_model(destination: str) -> AlreadyExists:
    return AlreadyExists(f"{destination} has another model: delete that model, or name another place with --to")


def _other_files(destination: str, names: Collection[str]) -> AlreadyExists:
    return AlreadyExists(
        f"{destination} has files that do not belong to this model ({', '.join(sorted(names)[:3])}): name an empty "
        "place with --to"
    )


def _deliver(files: Any, root: str, folder: Path, destination: str) -> None:
    own = list_names(folder)
    found = _found(files, root)
    last = _last(folder)
    _check_no_file(found, destination)
    if last in found:
        if SUMS in found and files.cat_file(f"{root}/{SUMS}") == (folder / SUMS).read_bytes():
            print(f"the model is complete in {destination} already", flush=True)
            return
        raise _another_model(destination)
    if others := set(found) - set(own):
        raise _other_files(destination, others)
    if is_local(files):
        _rename_into(Path(root), folder)
    else:
        for name in (*(name for name in own if name not in (SUMS, last)), SUMS, last):
            print(f"writing {destination.rstrip('/')}/{name}", flush=True)
            files.put_file(str(folder / name), f"{root}/{name}")
    print(f"the model: {destination}", flush=True)


def list_names(folder: Path) -> list[str]:
    """Lists the files of a model, including those of its adapter, by their relative paths."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _last(folder: Path) -> str:
    return next(name for name in _LAST if (folder / name).is_file())


def _rename_into(target: Path, folder: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(folder, partial)
        partial.chmod(0o777 & ~_umask())  # Only its owner can read a temporary folder.
        if target.exists():
            target.rmdir()  # It is empty.
        partial.rename(target)
    except OSError as error:  # This includes `shutil.Error`, which lists the errors of all files.
        full = _is_full(error)
        shutil.rmtree(partial, ignore_errors=True)
        if full:
            raise ResourceExhausted(
                f"the disk of {target} is full: free some space, or name another place with --to",
                reason=ErrorReason.DISK_FULL,
            ) from error
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise FailedPrecondition(f"{target} cannot be written: {why}", reason=ErrorReason.FOLDER) from error


def _is_full(error: OSError) -> bool:
    if isinstance(error, shutil.Error):
        return any(os.strerror(errno.ENOSPC) in why for _, _, why in error.args[0])
    return error.errno == errno.ENOSPC


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
