import asyncio
from typing import Any

import pytest

from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import WorkerRecord
from services.coordinator.workers.weights.fault_finding import at_fault, unless_silent
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, DeadlineExceeded, ShoalError, Unavailable
from shoal.v1 import worker_pb2


class Stub:
    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.num_asked = 0

    async def GetStatus(self, request: object, timeout: float) -> str:
        self.num_asked += 1
        if not self.answers:
            raise DeadlineExceeded("GetStatus at 127.0.0.1:1 did not end within 5 s")
        return "status"


def member(name: str, *, num_ranks: int = 1, answers: bool = True) -> Member:
    record = WorkerRecord(name, worker_pb2.WORKER_KIND_GENERATOR, f"{name}:1", num_ranks, 0.0)
    channel: Any = None
    return Member(record, channel, Stub(answers=answers))


def broken(missing_ranks: str = "") -> ShoalError:
    metadata = {"missing_ranks": missing_ranks} if missing_ranks else {}
    return Unavailable("lost a member", reason=ErrorReason.WEIGHT_GROUP_BROKEN, metadata=metadata)


@pytest.mark.parametrize(
    ("failures", "answers", "expected"),
    [
        # An error of its own says more than ranks that are missed, and those more than silence.
        ({"a": broken("2"), "b": DataLoss("corrupt")}, {"c"}, ["b"]),
        ({"a": broken("4"), "b": broken()}, {"a", "c"}, ["c"]),
        ({"a": broken(), "b": broken()}, {"a", "c"}, ["b"]),
        ({"a": broken(), "b": broken()}, {"a", "b", "c"}, []),
    ],
)
async def test_the_members_at_fault_are_told_from_those_that_report_their_failure(
    failures: dict[str, ShoalError], answers: set[str], expected: list[str]
) -> None:
    members = [
        member(name, num_ranks=num_ranks, answers=name in answers) for name, num_ranks in (("a", 1), ("b", 2), ("c", 1))
    ]
    assert sorted(await at_fault(members, failures)) == expected


async def test_a_member_alone_is_at_fault_whatever_it_reports() -> None:
    assert list(await at_fault([member("a")], {"a": broken()})) == ["a"]


async def test_a_wait_ends_early_when_a_member_does_not_answer() -> None:
    members = [member("a"), member("b", answers=False)]
    found = await unless_silent(asyncio.Event().wait(), members, 0.01)
    assert list(found) == ["b"] and "does not answer" in found["b"].message, found


async def test_a_wait_that_ends_in_time_asks_nobody() -> None:
    silent = member("a", answers=False)
    assert await unless_silent(asyncio.sleep(0), [silent], 60.0) == {}
    assert silent.stub.num_asked == 0
