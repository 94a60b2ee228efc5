"""Which reward service is asked when one does not answer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from services.coordinator.store.events import EventLog
from services.coordinator.workers.member import Member
from services.coordinator.workers.reward_pool import RewardPool, VerifierCode
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, ShoalError, Unavailable
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.v1 import reward_pb2
from tests.support.configs import run_config

CONFIG = run_config()


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


SETTLE_S = 10.0


def test_late_scores_of_the_former_code_are_no_change_and_going_back_is_one(tmp_path: Path) -> None:
    now = 0.0
    events = EventLog(tmp_path / "events.jsonl")
    code = VerifierCode(events, settle_s=SETTLE_S, clock=lambda: now)

    def num_events(digest: str, service: str = "one") -> int:
        parts = (VerifierScore("gsm8k", ScoreOutcome.SCORED), VerifierScore("mine", ScoreOutcome.SCORED))
        parts = (parts[0], VerifierScore("mine", ScoreOutcome.SCORED, code_digest=digest))
        code.observe(service, "data:0", Score(0, ScoreOutcome.SCORED, 0.0, parts))
        return len((tmp_path / "events.jsonl").read_text().splitlines())

    assert [num_events("a"), num_events("a")] == [1, 1]
    assert [num_events("b"), num_events("a"), num_events("b")] == [2, 2, 2], (
        "a completion that was begun before is no change"
    )
    assert [num_events("a", "two"), num_events("a", "two")] == [3, 3], "each service takes the new code when it sees it"
    now = SETTLE_S + 1
    assert [num_events("a"), num_events("b")] == [4, 4], "the file was changed back"
    events.close()
