"""Finds the members of a broken publish that are at fault.

One member that dies, stalls or is slow breaks the collective for all members, and each member reports an error. The
publisher leaves out the member that is at fault, and repeats the pass with the other members.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from services.coordinator.workers.member import Member, status_of
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, ShoalError, Unavailable

Failures = dict[str, ShoalError]
"""Why members failed, by worker id."""

_OF_THE_GROUP = frozenset(
    {
        ErrorReason.WEIGHT_GROUP_BROKEN,
        ErrorReason.WEIGHT_GROUP_TIMEOUT,
        ErrorReason.WEIGHT_STORE_UNREACHABLE,
        ErrorReason.OLD_EPOCH,
    }
)
"""Reasons that any member reports when another member fails."""


async def at_fault(members: Sequence[Member], failures: Failures) -> Failures:
    """Returns the members that broke a pass, with their errors; empty if these members cannot be identified.

    These are the members with errors of their own; if there are none, the members whose ranks did not join the group;
    if there are none either, the members that do not answer a status call.
    """
    if len(members) == 1:
        return failures
    own = {worker_id: error for worker_id, error in failures.items() if not is_of_group(error)}
    return own or _missed(members, failures) or await silent(members)


def is_of_group(error: ShoalError) -> bool:
    """Returns whether an error reports that the group broke, but not why."""
    return error.reason in _OF_THE_GROUP


async def silent(members: Sequence[Member]) -> Failures:
    """Returns the members that do not answer a status call."""
    answers = await asyncio.gather(*(status_of(member) for member in members), return_exceptions=True)
    failures: Failures = {}
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, ShoalError):
            failures[member.record.worker_id] = Unavailable(f"the generator does not answer: {answer.message}")
        elif isinstance(answer, BaseException):
            raise answer
    return failures


async def unless_silent(waiting: Coroutine[Any, Any, Any], members: Sequence[Member], period_s: float) -> Failures:
    """Awaits `waiting`, and asks the members for their status every `period_s`. Stops early if members do not answer,
    and returns these. Otherwise a stalled member would hold up the other members until `weights.timeout_s`."""

    async def first_silent() -> Failures:
        while True:
            await asyncio.sleep(period_s)
            if found := await silent(members):
                return found

    waited, watch = asyncio.ensure_future(waiting), asyncio.create_task(first_silent())
    try:
        await asyncio.wait([waited, watch], return_when=asyncio.FIRST_COMPLETED)
        return {} if waited.done() else watch.result()
    finally:
        waited.cancel()
        watch.cancel()


def _missed(members: Sequence[Member], failures: Failures) -> Failures:
    """Returns the members whose ranks errors name in `missing_ranks`."""
    ranks = {
        int(rank) for error in failures.values() for rank in error.metadata.get("missing_ranks", "").split(",") if rank
    }
    missed: Failures = {}
    first = 1
    for member in members:
        end = first + member.record.num_weight_ranks
        if found := sorted(ranks.intersection(range(first, end))):
            missed[member.record.worker_id] = DeadlineExceeded(
                f"its rank{'' if len(found) == 1 else 's'} {', '.join(map(str, found))} did not join the weight group",
                reason=ErrorReason.WEIGHT_GROUP_TIMEOUT,
            )
        first = end
    return missed
