"""The second half of writing a checkpoint: syncing and digesting the files, then renaming the folder.

`write_checkpoint`, a command on all ranks, leaves the state in files that the kernel may still hold. Then a thread on
each rank syncs and digests the files that this rank wrote, and reports to rank 0. The thread of rank 0 renames the
folder once all ranks have reported.

No collective takes part, so train steps run meanwhile. A caller that waits for the end needs a deadline, since a rank
that is gone or hangs reports nothing.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import (
    discard_folder,
    finish_folder,
    partial_of,
    sha256_of,
    storage_errors,
    sync,
)
from services.learner.storage.checkpoints import LEARNER_FOLDER, FileDigest
from services.learner.storage.universal_checkpoint import discard_universal_form
from shoal.errors import Internal, ShoalError
from shoal.paths import is_step_name

_POLL_S = 0.02
_NICENESS = 10


class CheckpointFinisher:
    """Finishes the checkpoints of one rank, one at a time."""

    def __init__(self, process_group: ProcessGroup) -> None:
        self._process_group = process_group
        self._num_begun = 0
        self._thread: threading.Thread | None = None

    def wait(self) -> None:
        """Waits until this rank has done its part in the previous checkpoint, with or without success."""
        if self._thread is not None:
            self._thread.join()

    def begin(
        self, checkpoints: Path, name: str, mine: Sequence[Path], *, keep: Collection[str]
    ) -> "Future[list[FileDigest]]":
        """Begins to finish a checkpoint; `mine` are the files that this rank has written. Call it on all ranks.

        Rank 0 deletes all other checkpoints that are not in `keep`, and its future returns the digests of all files.
        The future fails with `ResourceExhausted` or `FailedPrecondition` in the same cases as `write_checkpoint`.
        """
        self.wait()
        self._num_begun += 1
        subject = f"checkpoint/{self._num_begun}"
        future: Future[list[FileDigest]] = Future()

        def finish() -> None:
            if sys.platform == "linux":
                os.nice(_NICENESS)  # For this thread alone: digests would take processors from train steps.
            folder = checkpoints / name / LEARNER_FOLDER
            try:
                files = self._bring_to_disk(subject, folder, mine)
                if self._process_group.rank == 0:
                    with storage_errors(folder):
                        finish_folder(folder)
                        _delete_others(checkpoints, {name, *keep})
                future.set_result(files)
            except Exception as error:
                if self._process_group.rank == 0:
                    discard_folder(folder)
                future.set_exception(error)

        # Daemon: storage that hangs must not keep the process alive.
        self._thread = threading.Thread(target=finish, name="checkpoint", daemon=True)
        self._thread.start()
        return future

    def _bring_to_disk(self, subject: str, folder: Path, mine: Sequence[Path]) -> list[FileDigest]:
        """Syncs and digests the files of this rank. On rank 0 the result has the digests of all ranks."""
        process_group = self._process_group
        files: list[FileDigest] = []
        error: ShoalError | None = None
        try:
            with storage_errors(folder):
                files = [_digest(path, partial_of(folder)) for path in mine]
        except ShoalError as raised:
            error = raised
        except Exception as raised:
            error = Internal(f"the files of {folder} could not be hashed: {type(raised).__name__}: {raised}")
        process_group.report(subject, json.dumps([asdict(file) for file in files]), error)
        if process_group.rank > 0:
            return files
        while (reports := process_group.take_reports(subject)) is None:
            time.sleep(_POLL_S)
        found = [FileDigest(**fields) for report in reports for fields in json.loads(report)]
        return sorted(found, key=lambda file: file.path)


def _digest(path: Path, folder: Path) -> FileDigest:
    sync(path)
    return FileDigest(str(path.relative_to(folder)), path.stat().st_size, sha256_of(path))


def _delete_others(checkpoints: Path, keep: Collection[str]) -> None:
    """Deletes the learner's part of checkpoints that are not in `keep`, and the remains of unfinished checkpoints.

    The coordinator deletes its own part. A folder with another name is a user's copy, and is not deleted.
    """
    for other in checkpoints.iterdir():
        if is_step_name(other.name) and other.name not in keep:
            shutil.rmtree(other / LEARNER_FOLDER, ignore_errors=True)
            discard_universal_form(other)
            discard_folder(other / LEARNER_FOLDER)
