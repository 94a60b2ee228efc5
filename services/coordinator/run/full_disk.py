"""Full disks: the run waits until there is room, and then continues automatically."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from services.coordinator.run.commands import RunCommands
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.store.files.disk_errors import is_full
from services.coordinator.store.run_lock import DISK_LOCK, RunLock
from shoal.concurrency import Signal
from shoal.errors import ResourceExhausted, ShoalError

ResultT = TypeVar("ResultT")

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
"""First and longest pause before a write is repeated; the pauses between double."""


class FullDisk:
    """Repeats writes that failed because of a full disk, and keeps the run paused meanwhile."""

    def __init__(self, controls: RunControls, commands: RunCommands, folder: Path) -> None:
        """A lock in the run's `folder` shows readers that the run waits, since its record may not fit on the disk."""
        self._controls = controls
        self._folder = folder
        with contextlib.suppress(OSError):
            (folder / DISK_LOCK).touch()
        self._commands = commands
        self._changed = Signal()
        self._num_waiting = 0
        self._message = ""
        self._lock: RunLock | None = None

    async def written(self, write: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Returns the result of `write`. Repeats `write` as long as it fails because a disk is full.

        Any request to the run causes an immediate repetition. Raises the error of `write` if the run is to stop now.
        """
        try:
            return await write()
        except ResourceExhausted as error:
            if not is_full(error):
                raise
            return await self._repeat(write, error)

    async def _repeat(self, write: Callable[[], Awaitable[ResultT]], error: ResourceExhausted) -> ResultT:
        pause_s = MIN_PAUSE_S
        self._num_waiting += 1
        self._show()
        try:
            while self._controls.stop is not StopMode.NOW:
                self._message = error.message
                self._changed.notify()
                await self._controls.changed.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                try:
                    return await write()
                except ResourceExhausted as repeated:
                    if not is_full(repeated):
                        raise
                    error = repeated
            raise error
        finally:
            self._num_waiting -= 1
            self._show()
            self._changed.notify()

    def _show(self) -> None:
        """Holds the lock while a write waits. Without the lock, only the coordinator reports that the run is paused."""
        if self._num_waiting and self._lock is None:
            with contextlib.suppress(ShoalError):
                self._lock = RunLock(self._folder, DISK_LOCK)
        elif not self._num_waiting and self._lock is not None:
            self._lock.release()
            self._lock = None

    async def guard(self) -> None:
        """Pauses the run whenever a write waits. Never returns."""
        while True:
            while self._num_waiting and self._controls.stop is not StopMode.NOW:
                await self._commands.pause_itself(
                    f"{self._message}: the run is paused, and continues once there is room"
                )
                if self._num_waiting:
                    await self._changed.wait()
            await self._commands.end_own_pause()
            if not self._num_waiting or self._controls.stop is StopMode.NOW:
                await self._changed.wait()
