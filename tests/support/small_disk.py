"""A disk of some KiB, to be filled: a tmpfs mounted over a folder."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 10))

    def free(self) -> None:
        self._filler.unlink()

    @contextlib.contextmanager
    def read_only(self, name: str) -> Iterator[None]:
        """Makes a folder on it read-only, except for files that are open."""
        folder = str(self.folder / name)
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
            yield
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mounts a disk of a size ("256k") over a folder; skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
