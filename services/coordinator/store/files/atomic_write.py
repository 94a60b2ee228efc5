"""Atomic replacement of files."""

import os
from pathlib import Path

from services.coordinator.store.files.disk_errors import writing


def write_atomically(path: Path, text: str) -> None:
    """Replaces the text of a file. After a crash the file has the old or the new text. Raises as `writing` does."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a rename in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
