"""The learner's checkpoint saves. Each save runs once, to its end, within the deadline of its caller."""

import asyncio
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from services.learner.commands import LearnerCommands
from services.learner.departure import Departure
from services.learner.once import Once
from services.learner.ranks.process_group import Command
from services.learner.request_checks import check_name
from services.learner.served_run import ServedRun
from services.learner.storage.checkpoints import FileDigest
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2
from shoal.wire import version_from_wire
from shoal.worker.lifecycle import Lifecycle


@dataclass(frozen=True)
class Save:
    """A checkpoint whose state is written. Later changes of the learner do not change the checkpoint."""

    version: WeightVersion
    finished: "asyncio.Task[list[FileDigest]]"
    """Returns the digests of the checkpoint's files once the files are on disk. Raises the error of a failed save."""


class CheckpointSaves:
    """Saves checkpoints. All methods belong to one event loop."""

    def __init__(self, served: ServedRun, lifecycle: Lifecycle, departure: Departure) -> None:
        self._served = served
        self._lifecycle = lifecycle
        self._departure = departure
        self._saves = Once[Save]()

    async def write(self, request: learner_pb2.LearnerServiceSaveCheckpointRequest, within_s: float | None) -> Save:
        """Begins the save that a request asks for, unless it has already begun. Waits until the state is written.

        If the save has not finished `within_s` seconds after it began, the learner ends as FAILED.
        """
        commands, _ = self._served.require_ready()
        check_name(request.checkpoint_id, "checkpoint_id")
        version = self._served.version
        if request.HasField("expected_version"):
            version = version_from_wire(request.expected_version)
        # A late request must not replace a checkpoint that is already committed.
        writing = self._saves.begin_once(
            f"{request.checkpoint_id} of {version}",
            lambda: asyncio.create_task(self._write(request, within_s)),
            lambda save: self._still_holds(commands, request.checkpoint_id, save),
        )
        # A half-written checkpoint is useless: the command runs to its end even if the call is canceled.
        return await asyncio.shield(writing)

    def _still_holds(self, commands: LearnerCommands, name: str, save: Save) -> bool:
        if not save.finished.done():
            return True
        if save.finished.exception() is None:
            return commands.has_files(name, save.finished.result())
        # A repeat saves again while the learner still has that version. Later it can only get the error.
        return save.version != self._served.version

    async def _write(self, request: learner_pb2.LearnerServiceSaveCheckpointRequest, within_s: float | None) -> Save:
        began = time.monotonic()

        def work(commands: LearnerCommands) -> tuple[WeightVersion, int, Future[list[FileDigest]]]:
            files = commands.save_checkpoint(request, self._lifecycle.progress)
            return commands.learner.version, self._departure.num_steps, files

        check = partial(LearnerCommands.check_save, request=request)
        version, num_steps, files = await self._served.run(Command.SAVE_CHECKPOINT, request, within_s, work, check)
        left_s = None if within_s is None else within_s - (time.monotonic() - began)
        finished = asyncio.create_task(self._finish(request.checkpoint_id, num_steps, files, left_s))
        finished.add_done_callback(_see_error)
        return Save(version, finished)

    async def _finish(
        self, name: str, num_steps: int, files: "Future[list[FileDigest]]", left_s: float | None
    ) -> list[FileDigest]:
        finishing = asyncio.wrap_future(files)
        await asyncio.wait([finishing], timeout=left_s)
        if not finishing.done():
            # A rank is gone, or storage hangs. Only the end of the process ends the save.
            self._lifecycle.fail(f"the learner hangs: checkpoint {name} was not on disk in time (checkpoint.timeout_s)")
        digests = await finishing
        self._departure.saved(num_steps)
        return digests


def _see_error(finished: "asyncio.Task[Any]") -> None:
    """Retrieves an error that perhaps no caller waits for. Otherwise asyncio would report it."""
    if not finished.cancelled():
        finished.exception()
