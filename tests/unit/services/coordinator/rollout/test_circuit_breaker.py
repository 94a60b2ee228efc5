import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from shoal.config.tables.reward import RewardConfig
from shoal.scores import Score, ScoreOutcome, VerifierScore
from tests.support.waiting import settled
from tests.support.wordings import has_all

SCORED, FAILED = ScoreOutcome.SCORED, ScoreOutcome.FAILED


class Events:
    def __init__(self) -> None:
        self.added: list[tuple[str, str, dict[str, Any]]] = []

    def add(self, kind: str, message: str, **attributes: Any) -> None:
        self.added.append((kind, message, attributes))


class Run:
    """A circuit breaker, its events, and the number of its pauses."""

    def __init__(self, **reward: Any) -> None:
        self.events = Events()
        self.num_pauses = 0
        self.breaker = CircuitBreaker(
            RewardConfig(**reward),
            self.events,  # type: ignore[arg-type]
            self._pause,
            resume_command="shoal run resume r --coordinator h:7",
        )

    async def _pause(self, message: str) -> None:
        self.num_pauses += 1

    @contextmanager
    def in_flight(self, num_groups: int) -> Iterator[None]:
        """Lets so many groups be in flight while the block runs."""
        with ExitStack() as stack:
            for _ in range(num_groups):
                stack.enter_context(self.breaker.group())
            yield

    async def settle(self, scores: list[Score], *, is_retry: bool = False) -> bool:
        """Passes on the scores of a group that is in flight only meanwhile."""
        with self.breaker.group():
            return await self.rejects(scores, is_retry=is_retry)

    async def rejects(self, scores: list[Score], *, is_retry: bool = False) -> bool:
        """Passes on the scores of a group that was sent to be scored just now."""
        return await self.breaker.rejects(scores, num_outages=self.breaker.num_outages, is_retry=is_retry)


def group(outcomes: list[ScoreOutcome], verifier: str = "code") -> list[Score]:
    return [
        Score(
            index, outcome, 0.0, (VerifierScore(verifier, outcome, detail="bubblewrap is gone" * (outcome is FAILED)),)
        )
        for index, outcome in enumerate(outcomes)
    ]


ALL_FAILED, ALL_SCORED = group([FAILED] * 4), group([SCORED] * 4)


async def test_failures_beyond_the_share_pause_the_run_and_the_event_names_verifier_and_reason() -> None:
    run = Run(outage_window=8)
    rejected = [await run.settle(group([SCORED, FAILED, FAILED, SCORED])) for _ in range(2)]
    assert rejected == [False, False], "4 of the last 8 are not more than half"
    assert await run.settle(group([FAILED, SCORED, FAILED, FAILED]))
    [(kind, message, attributes)] = run.events.added
    assert (kind, run.num_pauses) == ("reward_outage", 1)
    assert attributes == {"verifier": "code", "failed_share": 5 / 8}, attributes
    assert has_all(message, "code ", " 5 ", " 8", "bubblewrap is gone", "resume r --coordinator h:7 "), message


async def test_the_reason_of_an_outage_keeps_no_control_characters_of_a_completion() -> None:
    run = Run(outage_window=2)
    part = VerifierScore("mine", FAILED, detail="ValueError: '\x1b[2J'")
    assert await run.settle([Score(index, FAILED, 0.0, (part,)) for index in range(2)])
    [(_, message, _)] = run.events.added
    assert "(ValueError: '<U+001B>[2J')" in message, message


async def test_failures_from_before_a_resume_are_scored_again_and_pause_nothing() -> None:
    """Groups that were half scored when the service was fixed: 6 of their 8 completions had failed by then."""
    run = Run(outage_window=8)
    assert [await run.settle(ALL_FAILED) for _ in range(2)] == [False, True]
    run.breaker.close()
    with run.in_flight(2):
        late = [run.breaker.rejects(group([FAILED, FAILED, FAILED, SCORED]), num_outages=0) for _ in range(2)]
        assert await asyncio.gather(*late) == [True, True]
    assert not await run.breaker.rejects(ALL_SCORED, num_outages=0), "a group without a failure is used"
    assert run.num_pauses == 1, run.events.added
    run.breaker.close()
    assert run.breaker.num_outages == 1, "it was over already"
    assert [await run.settle(ALL_FAILED) for _ in range(2)] == [True, True], "another outage"
    assert run.num_pauses == 2
    assert has_all(run.events.added[-1][1], "code ", " again ", " 4 of its last 4"), run.events.added


async def test_while_the_run_is_paused_groups_with_failures_are_rejected_and_others_are_used() -> None:
    run = Run(outage_window=4)
    assert await run.settle(ALL_FAILED)
    assert await run.settle(group([SCORED, SCORED, FAILED, SCORED]))
    assert not await run.settle(ALL_SCORED)
    run.breaker.close()
    assert not await run.settle(group([SCORED, SCORED, FAILED, SCORED]))
    assert run.num_pauses == 1


async def test_an_outage_of_a_rare_verifier_does_not_hide_behind_the_others() -> None:
    run = Run(outage_window=16)
    for _ in range(4):
        rejected = await run.settle(ALL_FAILED)
        for _ in range(10):
            await run.settle(group([SCORED] * 4, "math"))
    assert rejected and run.num_pauses == 1


async def test_the_first_groups_of_an_outage_wait_and_are_scored_again() -> None:
    """None of the three exceeds the share, but no other group is left to show that the verifier works."""
    run = Run(outage_window=64)
    with run.in_flight(3):
        first, second = (asyncio.create_task(run.rejects(ALL_FAILED)) for _ in range(2))
        await settled()
        assert not first.done() and not second.done() and not run.num_pauses
        assert await run.rejects(ALL_FAILED)
        assert await first and await second
    assert run.num_pauses == 1
    assert " 12 " in run.events.added[0][1], run.events.added


async def test_groups_that_an_outage_interrupts_wait_as_well() -> None:
    run = Run(outage_window=64)
    with run.in_flight(3):
        first = asyncio.create_task(run.rejects(group([SCORED, SCORED, SCORED, FAILED])))
        second = asyncio.create_task(run.rejects(group([SCORED, FAILED, FAILED, FAILED])))
        await settled()
        assert not first.done() and not second.done()
        assert await run.rejects(ALL_FAILED)
        assert await first and await second
    assert run.num_pauses == 1


async def test_single_failures_in_several_groups_are_no_outage() -> None:
    run = Run()
    scored = asyncio.Event()

    async def straggle() -> bool:
        with run.breaker.group():
            await scored.wait()
            return await run.rejects(group([SCORED, SCORED, SCORED, FAILED]))

    straggling = [asyncio.create_task(straggle()) for _ in range(3)]
    await settled()
    scored.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*straggling) == [False] * 3
    assert not run.num_pauses


async def test_a_group_waits_for_one_window_of_completions_at_most() -> None:
    run = Run(outage_window=8)
    with run.in_flight(9):
        suspects = []
        for _ in range(3):
            suspects.append(asyncio.create_task(run.rejects(group([FAILED, SCORED, SCORED, SCORED]))))
            await settled()
        assert [suspect.done() for suspect in suspects] == [True, False, False], "8 completions after the first"
        for suspect in suspects[1:]:
            suspect.cancel()


async def test_a_group_that_alone_breaks_a_verifier_is_accepted_once_another_group_shows_so() -> None:
    run = Run()
    with run.in_flight(3):
        suspect = asyncio.create_task(run.rejects(ALL_FAILED))
        await settled()
        assert not suspect.done()
        assert not await run.rejects(group([SCORED] * 4, "math")), "another verifier is no evidence about this one"
        await settled()
        assert not suspect.done()
        assert not await run.rejects(ALL_SCORED)
        assert not await suspect
    assert not run.num_pauses


async def test_a_group_that_alone_breaks_a_verifier_does_not_wait_when_no_other_is_in_flight() -> None:
    run = Run()
    assert not await run.settle(ALL_FAILED)
    with run.breaker.group():
        suspect = asyncio.create_task(run.settle(ALL_FAILED))
        await settled()
        assert not suspect.done()
    assert not await suspect, "the other group ended without scores"


async def after_an_outage() -> Run:
    run = Run(outage_window=4)
    assert await run.settle(ALL_FAILED)
    run.breaker.close()
    return run


async def test_after_a_resume_a_single_group_that_fails_again_pauses_again() -> None:
    for scores in (ALL_FAILED, group([FAILED, FAILED, FAILED, SCORED]), group([FAILED])):
        run = await after_an_outage()
        assert await run.settle(scores, is_retry=True), scores
        assert run.num_pauses == 2


async def test_after_a_resume_a_group_that_fails_again_is_accepted_once_the_verifier_has_judged_another() -> None:
    run = await after_an_outage()
    with run.in_flight(2):
        suspect = asyncio.create_task(run.rejects(group([FAILED, FAILED, SCORED, SCORED]), is_retry=True))
        await settled()
        assert not suspect.done()
        assert not await run.rejects(ALL_SCORED, is_retry=True)
        assert not await suspect
        assert not await run.rejects(group([FAILED, SCORED, SCORED, SCORED]), is_retry=True), "it is trusted again"
    assert run.num_pauses == 1


async def test_after_a_resume_single_failures_of_a_verifier_pause_nothing() -> None:
    run = await after_an_outage()
    assert not await run.settle(group([FAILED, SCORED, SCORED, SCORED]), is_retry=True)
    assert run.num_pauses == 1


async def test_a_single_completion_is_never_rejected_for_itself() -> None:
    run = Run()
    with run.in_flight(2):
        assert not await run.rejects(group([FAILED])), "a greedy baseline is no evidence"


async def test_a_share_of_1_never_pauses() -> None:
    run = Run(max_failed_share=1.0, outage_window=4)
    with run.breaker.group():
        assert not any([await run.settle(ALL_FAILED) for _ in range(5)])
    assert not run.num_pauses
