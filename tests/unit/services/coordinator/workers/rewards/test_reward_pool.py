"""Which reward service is asked when one does not answer."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from services.coordinator.workers.member import Member
from services.coordinator.workers.rewards.reward_pool import RewardPool
from shoal.config import parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, ShoalError, Unavailable
from shoal.v1 import reward_pb2

CONFIG = parse_config({"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}})


def make_pool(*answers: Any) -> tuple[RewardPool, list[Member]]:
    """Makes a pool of services, each with its answer to ListVerifiers, that are asked in their order."""
    members = [
        Member(Mock(), Mock(), SimpleNamespace(ListVerifiers=AsyncMock(side_effect=[answer])), number, serving=True)
        for number, answer in enumerate(answers)
    ]

    def out_of_reach(member: Member, error: ShoalError) -> None:
        member.serving = False

    fleet: Any = SimpleNamespace(rewards=members, out_of_reach=out_of_reach)
    return RewardPool(fleet, Mock(), CONFIG, lambda: 0.0), members


@pytest.mark.parametrize("error", [DeadlineExceeded("it hangs"), Unavailable("it is gone")])
async def test_another_service_is_asked_for_its_verifiers_where_one_does_not_answer(error: ShoalError) -> None:
    pool, members = make_pool(error, reward_pb2.ListVerifiersResponse())
    await pool.check_verifiers([])
    assert [member.serving for member in members] == [False, True]


async def test_a_service_that_lists_no_verifiers_is_an_error() -> None:
    pool, _ = make_pool(FailedPrecondition("not here", reason=ErrorReason.UNIMPLEMENTED))
    with pytest.raises(FailedPrecondition, match="not here"):
        await pool.check_verifiers([])
