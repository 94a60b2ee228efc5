"""The groups that the learner gets while other groups are still being sampled, so that a train step only names them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

from services.coordinator.workers.fleet import Fleet
from shoal.errors import ShoalError
from shoal.rollout import HandedGroup, TrainBatch, TrainGroup
from shoal.v1 import learner_pb2
from shoal.wire import handed_group_to_wire

_log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_MAX_CALLS = 4
"""The most groups that are handed over at once, and so compete with a step that begins for the connection."""


class HandOver:
    """Hands groups of one attempt to the learner. A group that cannot be handed over is sent with its step."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._held: dict[str, HandedGroup] = {}
        """The groups that the learner holds, by group id."""
        self._next_order_number = 0
        """The order number of the first group whose step has not begun."""

    async def give(self, group: HandedGroup) -> None:
        """Hands over one group, unless its step begins first. Raises nothing if the learner does not take it."""
        async with self._calls:
            if group.order_number < self._next_order_number:
                return
            group, messages = await asyncio.to_thread(handed_group_to_wire, group)
            try:
                await self._fleet.learner.stub.HandOverGroup(_stream(messages), timeout=TIMEOUT_S)
            except ShoalError as error:
                _log.info("group is sent with its step", extra={"group_id": group.group_id, "error": error.message})
                return
        if group.order_number >= self._next_order_number:
            self._held[group.group_id] = group

    def begin_step(self, batch: TrainBatch) -> dict[str, str]:
        """Returns the digests of the batch's groups that the learner holds, by group id, and forgets these groups."""
        named = {group.group_id: held.digest for group in batch.groups if (held := self._held_content(group))}
        self._next_order_number = batch.next_order_number
        self._held = {name: held for name, held in self._held.items() if held.order_number >= batch.next_order_number}
        return named

    def _held_content(self, group: TrainGroup) -> HandedGroup | None:
        """Returns what the learner holds of a group, if these are the very completions that are trained on."""
        held = self._held.get(group.group_id)
        if held is None or held.prompt_token_ids is not group.prompt_token_ids:
            return None
        known = set(map(id, held.completions))
        return held if all(id(rollout.completion) in known for rollout in group.rollouts) else None


async def _stream(
    messages: Iterable[learner_pb2.HandOverGroupRequest],
) -> AsyncIterator[learner_pb2.HandOverGroupRequest]:
    for message in messages:
        yield message
