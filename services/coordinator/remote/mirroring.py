"""Copies the checkpoints of a run to its mirror while the run trains."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial

from services.coordinator.remote.fetching import fetch_checkpoint, fetch_shared
from services.coordinator.remote.file_systems import why_refused
from services.coordinator.remote.mirror_folder import Age, MirroredCheckpoint, MirroredFile, MirrorFolder, RunPlaces
from services.coordinator.store.events import EventLog
from services.coordinator.store.long_work import shown_alive
from services.coordinator.store.retention import kept_of
from shoal.errors import ShoalError
from shoal.quantities import format_bytes

_RECORDS = ("run.json", "config.json")
_GROWING = ("metrics.jsonl", "evaluations.jsonl", "events.jsonl")
RUN_FILES = (*_RECORDS, *_GROWING)
"""The files that a resume and a report need in addition to the checkpoint."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 30.0, 600.0
_STALL_S = 300.0
"""Seconds without a copied byte after which an ended run no longer waits for the mirroring of its last checkpoint."""


class Mirroring:
    """Copies checkpoints to the mirror, one at a time. A failure becomes an event, and never ends the run."""

    def __init__(self, url: str, places: RunPlaces, events: EventLog) -> None:
        """With an empty `url`, nothing is mirrored."""
        self._url = url
        self._places = places
        self._keep_last = 1
        self._events = events
        self._wanted: MirroredCheckpoint | None = None
        self._best: Collection[str] = ()
        self._copying = ""
        self._num_copied = 0
        self._is_ending = False
        self._woken = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    @property
    def held(self) -> set[str]:
        """The checkpoints that must not be deleted yet."""
        return {self._copying, self._wanted.checkpoint_id if self._wanted else ""} - {""}

    def offer(self, checkpoint: MirroredCheckpoint, keep_last: int, best: Collection[str] = ()) -> None:
        """Queues a checkpoint for copying. Replaces a queued checkpoint whose copying has not begun.

        The mirror keeps the last `keep_last` checkpoints, including this one, and `best`.
        """
        if not self._url:
            return
        self._wanted, self._keep_last, self._best = checkpoint, keep_last, best
        self._woken.set()
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def take_back(self, newer_than: Age | None = None) -> str:
        """Fetches the newest whole checkpoint of the mirror into the run's folders.

        Returns the checkpoint's name. The name is "" without a mirror, if no checkpoint is `newer_than` that age, or if
        the fetch fails; a failure is reported as an event.
        """
        found: list[tuple[str, list[str]]] = []
        if not self._url:
            return ""
        try:
            async with shown_alive(self._events, "fetching a checkpoint from the mirror", lambda: self._url):
                await _in_daemon_thread(lambda: found.append(fetch_checkpoint(self._url, self._places, newer_than)))
        except Exception as error:
            self._failed(f"no checkpoint could be fetched from {self._url}", _why(error))
            return ""
        ((checkpoint_id, damaged),) = found
        if not checkpoint_id:
            return ""
        message = f"checkpoint {checkpoint_id} was fetched from {self._url}{''.join(damaged)}"
        self._events.add("fetched", message, url=self._url, damaged=damaged, checkpoint_id=checkpoint_id)
        return checkpoint_id

    async def take_back_file(self, file: MirroredFile) -> str:
        """Replaces a shared file by the mirror's copy. Returns the mirror's URL; "" if there is no copy."""
        if not self._url:
            return ""
        try:
            await _in_daemon_thread(lambda: fetch_shared(self._url, self._places.run_folder, file))
        except Exception as error:
            self._failed(f"{file.path} could not be fetched from {self._url}", _why(error))
            return ""
        return self._url

    async def finish(self) -> None:
        """Waits until the newest checkpoint is mirrored, or cannot be mirrored."""
        if self._working is None:
            return
        self._is_ending = True
        self._woken.set()
        async with shown_alive(self._events, "mirroring the last checkpoint", self._progress):
            while not self._working.done():
                before = self._num_copied
                await asyncio.wait([self._working], timeout=_STALL_S)
                if not self._working.done() and self._num_copied == before:
                    what = f"checkpoint {self._copying} could not be copied to {self._url}"
                    self._failed(what, f"no byte was copied for {_STALL_S:.0f} s")
                    self._working.cancel()
                    return

    def _progress(self) -> str:
        return f"{format_bytes(self._num_copied)} of {self._copying} are copied"

    async def _work(self) -> None:
        """Copies queued checkpoints. Repeats failed copies, with growing pauses, unless the run ends."""
        pause_s = _FIRST_PAUSE_S
        while (checkpoint := self._wanted) is not None:
            self._wanted, self._copying, self._num_copied = None, checkpoint.checkpoint_id, 0
            self._woken.clear()
            try:
                began = time.monotonic()
                await _in_daemon_thread(partial(self._copy, checkpoint))
                self._mirrored(checkpoint, time.monotonic() - began)
                pause_s = _FIRST_PAUSE_S
            except Exception as error:  # Each file system has errors of its own.
                self._failed(f"checkpoint {self._copying} could not be copied to {self._url}", _why(error))
                if self._is_ending:
                    return
                if self._wanted is None:
                    self._wanted = checkpoint
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), pause_s)
                    pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            else:
                await self._delete_others()
            finally:
                self._copying = ""

    def _copy(self, checkpoint: MirroredCheckpoint) -> None:
        contents = {}
        for name in RUN_FILES:
            with suppress(FileNotFoundError):
                contents[name] = (self._places.run_folder / name).read_bytes()
        files = [
            MirroredFile(name, len(content), hashlib.sha256(content).hexdigest(), is_shared=name in _GROWING)
            for name, content in contents.items()
        ]
        whole = replace(checkpoint, files=(*checkpoint.files, *files))
        self._folder().put(self._places, whole, contents, self._count)

    async def _delete_others(self) -> None:
        def delete() -> None:
            folder = self._folder()
            whole = folder.whole()
            best = [each for each in whole if each.checkpoint_id in self._best]
            folder.keep_only(kept_of(whole, self._keep_last, best))

        try:
            await _in_daemon_thread(delete)
        except Exception as error:
            self._failed(f"older checkpoints in {self._url} could not be deleted", _why(error))

    def _folder(self) -> MirrorFolder:
        return MirrorFolder(self._url, self._places.run_folder.name)

    def _count(self, num_bytes: int) -> None:
        self._num_copied += num_bytes

    def _mirrored(self, checkpoint: MirroredCheckpoint, duration_s: float) -> None:
        name, num_bytes = checkpoint.checkpoint_id, checkpoint.num_bytes
        self._events.add(
            "checkpoint_mirrored",
            f"checkpoint {name} is in {self._url}: {format_bytes(num_bytes)} in {duration_s:.1f} s",
            checkpoint_id=name,
            url=self._url,
            num_bytes=num_bytes,
            duration_s=duration_s,
        )

    def _failed(self, what: str, reason: str) -> None:
        self._events.add(
            "mirror_failed",
            f"{what}: {reason}; this does not stop the run",
            checkpoint_id=self._copying,
            url=self._url,
            reason=reason,
        )


def _why(error: Exception) -> str:
    if isinstance(error, ShoalError):
        return error.message
    refused = why_refused(error)
    return f"{refused + ': ' if refused else ''}{type(error).__name__}: {error}"


async def _in_daemon_thread(work: Callable[[], None]) -> None:
    """Runs work on a thread for which the interpreter does not wait, since a file system may hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(error: Exception | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    def run() -> None:
        error = None
        try:
            work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=run, name="mirror", daemon=True).start()
    await done
