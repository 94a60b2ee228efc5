"""The coordinator with one thing broken on purpose, each against an invariant that must then fail."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.store.files.step_file import StepFile
from services.coordinator.store.ledger import Ledger
from services.coordinator.workers.generator_pool import Binding
from services.coordinator.workers.weights import publisher
from shoal.rollout import WeightVersion


def _instead(owner: Any, name: str, other: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, other)


def _waiting_for_any(self: PacingBuffer[Any]) -> Sequence[int]:
    """Waits until as many groups as a step needs have settled, whichever they are."""
    missing = self._groups_per_step - len(self._settled)
    return range(max(0, missing))


async def _take_any(self: PacingBuffer[Any]) -> list[Any]:
    async with self._changed:
        await self._changed.wait_for(lambda: not self.waiting_for())
        chosen = list(self._settled)[: self._groups_per_step]
        self.next_to_take += len(chosen)
        return [self._settled.pop(number)[0] for number in chosen]


async def _settle_any(self: PacingBuffer[Any], order_number: int, group: Any, *, has_signal: bool = True) -> None:
    async with self._changed:
        self._settled[order_number] = (group, has_signal)
        self._changed.notify_all()


@contextlib.contextmanager
def _in_any_order() -> Iterator[None]:
    with (
        mock.patch.object(PacingBuffer, "waiting_for", _waiting_for_any),
        mock.patch.object(PacingBuffer, "take", _take_any),
        mock.patch.object(PacingBuffer, "settle", _settle_any),
    ):
        yield


async def _release_one_more(self: PacingBuffer[Any]) -> None:
    async with self._changed:
        self.next_to_release = self.next_to_take + 1
        self._num_refills_taken = 0
        self._changed.notify_all()


async def _release_none(self: PacingBuffer[Any]) -> None:
    if self.next_to_release == 0:
        await _RELEASE(self)


_RELEASE = PacingBuffer.release
_PUBLISH = publisher.Publisher._publish
_DONE = Ledger.step_done
_RESIZE = Binding.resize
_COMMIT = Checkpoints.commit
_RESTORED = ConfigUpdates.restored


def _restored_without_changes(self: ConfigUpdates, policy_version: int, before: Any) -> Any:
    """Takes the changes since the checkpoint for recorded: those alone that waited are new."""
    return _RESTORED(self, policy_version, None)


def _keep_ledger(self: Checkpoints, manifest: Any, ledger: Any, attempt: int) -> None:
    """Restores nothing: what came after the checkpoint stays in the ledger."""


async def _commit_late(self: Checkpoints, ledger: Ledger, written: Any, files: Any) -> None:
    """Takes the ledger as it is once the learner's files are on disk, which may be steps later."""
    late = await ledger.moment()
    try:
        await _COMMIT(self, ledger, replace(written, moment=late), files)
    finally:
        late.close()


def _keep_lines(self: StepFile, step: int) -> list[Any]:
    return self.read()


async def _publish_next(self: Any, version: WeightVersion, members: Any) -> Any:
    """Calls the weights by the next version's name."""
    return await _PUBLISH(self, WeightVersion(version.attempt, version.policy_version + 1), members)


async def _forget_dropped(self: Ledger, progress: Any, *, trained: Any, dropped: Any, excluded: Any = ()) -> None:
    await _DONE(self, progress, trained=trained, dropped=(), excluded=excluded)


def _keep_room(self: Binding, num_completions: int) -> None:
    """Gives back no room when a group has ended without all its completions."""
    if num_completions or self._num_completions <= 1:
        _RESIZE(self, num_completions)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "take any finished groups instead of the next in order": _in_any_order,
    "release one slot too many with each step": _instead(PacingBuffer, "release", _release_one_more),
    "release no slot after the first step": _instead(PacingBuffer, "release", _release_none),
    "void nothing of the ledger at a restore": _instead(Checkpoints, "restore_ledger", _keep_ledger),
    "take the ledger of a checkpoint when its files are on disk": _instead(Checkpoints, "commit", _commit_late),
    "keep the metrics of steps that a restore discards": _instead(StepFile, "keep_until", _keep_lines),
    "forget the changes that came after the checkpoint": _instead(ConfigUpdates, "restored", _restored_without_changes),
    "publish weights under the next version": _instead(publisher.Publisher, "_publish", _publish_next),
    "forget the groups that a step drops": _instead(Ledger, "step_done", _forget_dropped),
    "give back no room on generators": _instead(Binding, "resize", _keep_room),
}
