"""The locks in the folder of a run: which process drives it, and whether it waits for room on a disk."""

import contextlib
import fcntl
import time
from pathlib import Path

from services.coordinator.store.files.disk_errors import writing
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition
from shoal.paths import why_unread

LOCK = "lock"
TRAIN_LOCK = "train.lock"
DISK_LOCK = "full-disk.lock"
"""The lock of a run that waits for room on a disk. The run's record cannot show this, since it may be on that disk."""
_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_S = 0.02
"""Number of tries to take a lock: a process that asks whether a run is driven has the lock for microseconds."""


class RunLock:
    """Marks a run as driven by a coordinator, until the process ends for any reason.

    Several coordinators may share a data folder, each with its own run. `shoal train` has a separate lock, since it
    writes into the run's folder before its coordinator does.
    """

    def __init__(
        self, folder: Path, name: str = LOCK, *, holder: str = "another coordinator", cure: str = "stop the run there"
    ) -> None:
        """Takes a lock in a run's folder. Raises `FailedPrecondition` with `holder` and `cure` if it is held."""
        with writing(folder / name):
            self._file = (folder / name).open("w")
        for _ in range(_LOCK_ATTEMPTS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(_LOCK_PAUSE_S)
        self._file.close()
        raise FailedPrecondition(f"run {folder.name} is driven by {holder}; {cure}", reason=ErrorReason.RUN_ACTIVE)

    def release(self) -> None:
        """Releases the run for other coordinators."""
        self._file.close()


def is_driven(folder: Path) -> bool:
    """Whether a coordinator drives the run in a folder. Raises `DataLoss` if the lock cannot be opened."""
    return is_held(folder / LOCK)


def is_held(path: Path) -> bool:
    """Whether a process has a lock. Raises `DataLoss` if the lock cannot be opened."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataLoss(
            f"{path} cannot be opened: {why_unread(error)}; make the folder readable for this user"
        ) from None
    return False
