"""Batches: groups that an engine samples together, with no other requests.

    groups arrive, in any order -> all are here -> the engine is idle -> they begin together, in order -> all end
                                   \\-> one group ends early: all others are ended

The values that an engine computes for a token depend, in the last bits, on the other tokens of the same step. So
completions are reproduced only by an identical batch that begins in the same way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, Internal, ShoalError
from shoal.wire import invalid

log = logging.getLogger(__name__)

GroupT = TypeVar("GroupT")


@dataclass(frozen=True)
class BatchPlace:
    """The place of a group in a batch."""

    batch_id: str
    index: int
    num_groups: int


@dataclass
class _Batch(Generic[GroupT]):
    num_groups: int
    groups: dict[int, GroupT] = field(default_factory=dict)
    """The groups that have not ended, by index."""
    num_ended: int = 0
    """The number of groups that were sampled to their end."""
    beginning: asyncio.Task[None] | None = None


class Batches(Generic[GroupT]):
    """The batches of one engine that have not ended."""

    def __init__(
        self, begin: Callable[[Sequence[GroupT]], Awaitable[None]], end: Callable[[GroupT, ShoalError], None]
    ) -> None:
        """`begin` begins the groups of a batch in an idle engine, `end` ends one group early with an error."""
        self._begin = begin
        self._end = end
        self._batches: dict[str, _Batch[GroupT]] = {}
        self._beginning = asyncio.Lock()

    def enter(self, place: BatchPlace, group: GroupT) -> None:
        """Adds a group to its batch, which begins when its last group is added. A repeated call changes nothing.

        Raises `InvalidArgument` if another group has the place.
        """
        batch = self._batches.setdefault(place.batch_id, _Batch(place.num_groups))
        if batch.groups.get(place.index) is group:
            return
        if place.num_groups != batch.num_groups:
            raise invalid(
                "batch.num_groups", f"must be {batch.num_groups}, as for its earlier groups (given: {place.num_groups})"
            )
        if place.index in batch.groups or batch.beginning is not None:
            raise invalid("batch.index", f"another group has place {place.index} of batch {place.batch_id!r}")
        batch.groups[place.index] = group
        if len(batch.groups) == batch.num_groups:
            batch.beginning = asyncio.create_task(self._begin_one(place.batch_id, batch))

    async def _begin_one(self, batch_id: str, batch: _Batch[GroupT]) -> None:
        try:
            async with self._beginning:
                await self._begin([batch.groups[index] for index in range(batch.num_groups)])
        except ShoalError as error:
            self._break(batch_id, error)
        except Exception as error:
            log.exception("a batch did not begin", extra={"batch_id": batch_id})
            self._break(batch_id, Internal(f"the batch did not begin: {type(error).__name__}: {error}"))

    def leave(self, place: BatchPlace, group: GroupT, *, is_complete: bool) -> None:
        """Removes a group that has ended. If the group is not complete, ends the other groups of its batch."""
        batch = self._batches.get(place.batch_id)
        if batch is None or batch.groups.get(place.index) is not group:
            return
        del batch.groups[place.index]
        batch.num_ended += 1
        if not is_complete:
            message = f"another group of the batch ended early (place {place.index} of batch {place.batch_id})"
            self._break(place.batch_id, Aborted(message, reason=ErrorReason.BATCH_BROKEN))
        elif batch.num_ended == batch.num_groups:
            del self._batches[place.batch_id]

    def _break(self, batch_id: str, error: ShoalError) -> None:
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return
        if batch.beginning is not None:
            batch.beginning.cancel()
        for group in batch.groups.values():
            self._end(group, error)
