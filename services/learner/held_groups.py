"""Groups that were handed over before the step that trains on them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

from services.learner.request_checks import message_bytes, take_all
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted
from shoal.quantities import counted, format_bytes
from shoal.rollout import HandedGroup, TrainBatch
from shoal.v1 import learner_pb2
from shoal.wire import handed_group_from_wire

_MAX_NAMED = 5
"""The most missing groups that an error names."""


class HeldGroups:
    """The groups of one attempt that wait for their step. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._attempt = 0
        self._next_order_number = 0
        """The order number of the first group of the attempt whose step has not begun."""
        self._groups: dict[str, tuple[HandedGroup, int]] = {}
        """The groups and their sizes in bytes, by group id."""
        self._arriving_bytes = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def num_bytes(self) -> int:
        """The bytes of all groups that are held or arrive."""
        return self._arriving_bytes + sum(size for _, size in self._groups.values())

    def begin_attempt(self, attempt: int) -> None:
        """Drops the groups of earlier attempts."""
        if attempt > self._attempt:
            self._attempt, self._next_order_number = attempt, 0
            self._groups.clear()

    async def receive(self, requests: AsyncIterator[learner_pb2.HandOverGroupRequest], max_bytes: int) -> None:
        """Receives and keeps one group.

        Raises `ResourceExhausted` (HELD_GROUPS_FULL) as soon as all groups together have more than `max_bytes`, and
        `FailedPrecondition` (VERSION_MISMATCH) for a group of another attempt.
        """
        messages: list[learner_pb2.HandOverGroupRequest] = []
        num_bytes = 0
        try:
            async for message in requests:
                num_parts = len(message.completions.completions)
                size = message_bytes(message, num_parts)
                num_bytes += size
                self._arriving_bytes += size
                if self.num_bytes > max_bytes:
                    raise ResourceExhausted(
                        f"HandOverGroup: the learner holds up to {format_bytes(max_bytes)} ({max_bytes} bytes) of "
                        "groups, as many as a step of the configuration may have: send the group with its step",
                        reason=ErrorReason.HELD_GROUPS_FULL,
                        metadata={"max_bytes": str(max_bytes)},
                    )
                messages.append(message)
            group = await asyncio.to_thread(handed_group_from_wire, take_all(messages))
        finally:
            self._arriving_bytes -= num_bytes
        self._keep(group, num_bytes)

    def _keep(self, group: HandedGroup, num_bytes: int) -> None:
        if group.attempt != self._attempt:
            raise FailedPrecondition(
                f"group {group.group_id} was sampled in attempt {group.attempt}, but the learner is in attempt "
                f"{self._attempt}: restore the learner first, or hand over no groups of other attempts",
                reason=ErrorReason.VERSION_MISMATCH,
                metadata={"attempt": str(self._attempt)},
            )
        if group.order_number >= self._next_order_number:
            self._groups[group.group_id] = group, num_bytes

    def named_in(self, messages: Iterable[learner_pb2.TrainStepRequest]) -> Mapping[str, HandedGroup]:
        """Returns the held groups that a step names, by group id. Raises `FailedPrecondition` (GROUPS_MISSING)."""
        named, missing = {}, []
        for message in messages:
            if not message.HasField("held_group"):
                continue
            group, _ = self._groups.get(message.held_group.group_id, (None, 0))
            if group is None or group.digest != message.held_group.digest:
                missing.append(message.held_group.group_id)
            else:
                named[group.group_id] = group
        if missing:
            shown = ", ".join(missing[:_MAX_NAMED]) + (", ..." if len(missing) > _MAX_NAMED else "")
            raise FailedPrecondition(
                f"the learner does not hold {counted(len(missing), 'group')} of the step, or not with the digest that "
                f"the step gives ({shown}): send the step again with whole groups",
                reason=ErrorReason.GROUPS_MISSING,
                metadata={"num_missing": str(len(missing))},
            )
        return named

    def step_begins(self, batch: TrainBatch) -> None:
        """Drops the groups of this step and of earlier steps, and takes no more of them."""
        following = batch.next_order_number
        if batch.expected_version.attempt == self._attempt and following > self._next_order_number:
            self._next_order_number = following
            self._groups = {name: held for name, held in self._groups.items() if held[0].order_number >= following}
