"""Files that can be restored, whatever happened to them.

This belongs to the first process of a sandbox, whose memory no other process can write. No other process may run during
a call.
"""

import itertools
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

_ALL = 0o700


@dataclass(frozen=True)
class _Kept:
    data: bytes
    mode: int


class KeptFiles:
    def __init__(self) -> None:
        self._files: dict[str, _Kept] = {}

    def keep(self, paths: Iterable[str]) -> None:
        """Remembers the files of `paths` that exist."""
        for path in paths:
            if (found := _read(path)) is not None:
                self._files[path] = found

    def restore(self) -> int:
        """Restores the changed files, and returns their number. Raises `OSError`.

        Links, folders and pipes in the place of a file or of its folders are no obstacle, and neither are modes.
        """
        changed = [path for path, kept in self._files.items() if _read(path) != kept]
        for path in changed:
            _make_folder(os.path.dirname(path))
            _put_away(path)
            kept = self._files[path]
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(kept.data)
                os.fchmod(descriptor, kept.mode)
        return len(changed)


def _read(path: str) -> _Kept | None:
    """Returns a file; None if there is no file at exactly this path."""
    try:
        if os.path.realpath(path) != path or not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _Kept(file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    except OSError:
        return None


def _make_folder(path: str) -> None:
    """Makes a writable folder. All folders on its path are real folders, not links."""
    parent = os.path.dirname(path)
    if parent != path:
        _make_folder(parent)
    if not os.path.isdir(path) or os.path.islink(path):
        _put_away(path)
        os.mkdir(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & _ALL != _ALL:
        os.chmod(path, mode | _ALL)


def _put_away(path: str) -> None:
    """Removes the file with this name. A folder is renamed instead, since removing its contents may take long."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    names = (f"{path}.replaced-{number}" for number in itertools.count(1))
    os.rename(path, next(name for name in names if not os.path.lexists(name)))
