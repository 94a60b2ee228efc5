"""When a run waits for its verifiers, and for whose failures it does not."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from services.coordinator.outage import OutageGuard
from shoal.config.services import RewardConfig
from shoal.rollout import Score, ScoreOutcome, VerifierScore

SCORED, FAILED = ScoreOutcome.SCORED, ScoreOutcome.FAILED


class Events:
    def __init__(self) -> None:
        self.added: list[tuple[str, str, dict[str, Any]]] = []

    def add(self, kind: str, message: str, **attributes: Any) -> None:
        self.added.append((kind, message, attributes))


class Run:
    """A guard, what it said, and how often it paused."""

    def __init__(self, **reward: Any) -> None:
        self.events = Events()
        self.num_pauses = 0
        self.guard = OutageGuard(RewardConfig(**reward), self.events, self._pause)  # type: ignore[arg-type]

    async def _pause(self, message: str) -> None:
        self.num_pauses += 1

    async def settle(self, scores: list[Score], *, again: bool = False) -> bool:
        """A group that is under way only while its scores are looked at."""
        with self.guard.group():
            return await self.holds(scores, again=again)

    async def holds(self, scores: list[Score], *, again: bool = False) -> bool:
        """For a group that was sent to be scored just now."""
        return await self.guard.holds(scores, num_over=self.guard.num_over, again=again)


def group(outcomes: list[ScoreOutcome], verifier: str = "code") -> list[Score]:
    return [
        Score(
            index, outcome, 0.0, (VerifierScore(verifier, outcome, detail="bubblewrap is gone" * (outcome is FAILED)),)
        )
        for index, outcome in enumerate(outcomes)
    ]


ALL_FAILED, ALL_SCORED = group([FAILED] * 4), group([SCORED] * 4)


async def soon() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_failures_beyond_the_share_pause_the_run_and_the_event_says_which_verifier_and_why() -> None:
    run = Run(outage_window=8)
    held = [await run.settle(group([SCORED, FAILED, FAILED, SCORED])) for _ in range(2)]
    assert held == [False, False], "4 of the last 8 are not more than half"
    assert await run.settle(group([FAILED, SCORED, FAILED, FAILED]))
    [(kind, message, attributes)] = run.events.added
    assert (kind, run.num_pauses) == ("reward_outage", 1)
    assert attributes == {"verifier": "code", "failed_share": 5 / 8}, attributes
    assert "code failed on 5 of its last 8" in message and "bubblewrap is gone" in message, message


async def test_what_failed_before_a_resume_and_comes_after_it_is_scored_again_and_pauses_nothing() -> None:
    """Groups that were half scored when the service was mended: 6 of their 8 completions had failed by then."""
    run = Run(outage_window=8)
    assert [await run.settle(ALL_FAILED) for _ in range(2)] == [False, True]
    run.guard.close()
    with run.guard.group(), run.guard.group():
        late = [run.guard.holds(group([FAILED, FAILED, FAILED, SCORED]), num_over=0) for _ in range(2)]
        assert await asyncio.gather(*late) == [True, True]
    assert not await run.guard.holds(ALL_SCORED, num_over=0), "what was scored is used"
    assert run.num_pauses == 1, run.events.added
    run.guard.close()
    assert run.guard.num_over == 1, "it was over already"
    assert [await run.settle(ALL_FAILED) for _ in range(2)] == [False, True], "another outage"
    assert run.num_pauses == 2


async def test_while_the_run_is_paused_what_failed_is_held_and_what_was_scored_is_used() -> None:
    run = Run(outage_window=4)
    assert await run.settle(ALL_FAILED)
    assert await run.settle(group([SCORED, SCORED, FAILED, SCORED]))
    assert not await run.settle(ALL_SCORED)
    run.guard.close()
    assert not await run.settle(group([SCORED, SCORED, FAILED, SCORED]))
    assert run.num_pauses == 1


async def test_an_outage_of_a_rare_verifier_does_not_hide_behind_the_others() -> None:
    run = Run(outage_window=16)
    for _ in range(4):
        held = await run.settle(ALL_FAILED)
        for _ in range(10):
            await run.settle(group([SCORED] * 4, "math"))
    assert held and run.num_pauses == 1


async def test_the_first_groups_of_an_outage_wait_and_are_not_lost() -> None:
    """None of the three is beyond the share, but there is nobody left to say that the verifier works."""
    run = Run(outage_window=64)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            stack.enter_context(run.guard.group())
        first, second = (asyncio.create_task(run.holds(ALL_FAILED)) for _ in range(2))
        await soon()
        assert not first.done() and not second.done() and not run.num_pauses
        assert await run.holds(ALL_FAILED)
        assert await first and await second
    assert run.num_pauses == 1
    assert "12 of its last 12" in run.events.added[0][1], run.events.added


async def test_groups_that_an_outage_cut_in_two_wait_as_well() -> None:
    run = Run(outage_window=64)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            stack.enter_context(run.guard.group())
        first = asyncio.create_task(run.holds(group([SCORED, SCORED, SCORED, FAILED])))
        second = asyncio.create_task(run.holds(group([SCORED, FAILED, FAILED, FAILED])))
        await soon()
        assert not first.done() and not second.done()
        assert await run.holds(ALL_FAILED)
        assert await first and await second
    assert run.num_pauses == 1


async def test_stragglers_of_several_groups_are_no_outage() -> None:
    run = Run()
    scored = asyncio.Event()

    async def straggle() -> bool:
        with run.guard.group():
            await scored.wait()
            return await run.holds(group([SCORED, SCORED, SCORED, FAILED]))

    straggling = [asyncio.create_task(straggle()) for _ in range(3)]
    await soon()
    scored.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*straggling) == [False] * 3
    assert not run.num_pauses


async def test_a_group_waits_no_longer_than_the_share_is_taken_of() -> None:
    run = Run(outage_window=8)
    async with AsyncExitStack() as stack:
        for _ in range(9):
            stack.enter_context(run.guard.group())
        suspects = []
        for _ in range(3):
            suspects.append(asyncio.create_task(run.holds(group([FAILED, SCORED, SCORED, SCORED]))))
            await soon()
        assert [suspect.done() for suspect in suspects] == [True, False, False], "8 completions after the first"
        for suspect in suspects[1:]:
            suspect.cancel()


async def test_a_group_that_alone_breaks_a_verifier_is_let_through_once_another_group_shows_so() -> None:
    run = Run()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            stack.enter_context(run.guard.group())
        suspect = asyncio.create_task(run.holds(ALL_FAILED))
        await soon()
        assert not suspect.done()
        assert not await run.holds(group([SCORED] * 4, "math")), "another verifier says nothing of this one"
        await soon()
        assert not suspect.done()
        assert not await run.holds(ALL_SCORED)
        assert not await suspect
    assert not run.num_pauses


async def test_a_group_that_alone_breaks_a_verifier_does_not_wait_for_nobody() -> None:
    run = Run()
    assert not await run.settle(ALL_FAILED)
    with run.guard.group():
        suspect = asyncio.create_task(run.settle(ALL_FAILED))
        await soon()
        assert not suspect.done()
    assert not await suspect, "the other one has ended without a word"


async def test_a_group_that_fails_again_after_the_pause_is_let_through() -> None:
    run = Run()
    with run.guard.group():
        assert not await run.settle(ALL_FAILED, again=True)


async def test_a_single_completion_is_never_held() -> None:
    run = Run()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            stack.enter_context(run.guard.group())
        assert not await run.holds(group([FAILED])), "a greedy baseline says nothing"


async def test_a_share_of_1_never_pauses() -> None:
    run = Run(max_failed_share=1.0, outage_window=4)
    with run.guard.group():
        assert not any([await run.settle(ALL_FAILED) for _ in range(5)])
    assert not run.num_pauses
