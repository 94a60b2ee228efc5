"""The gate between sampling and publishes."""

import asyncio

from services.coordinator.rollout.sampling_gate import SamplingGate


async def test_a_publish_waits_until_every_group_has_left_the_closed_gate() -> None:
    gate = SamplingGate(inflight_updates=False)
    first, second = await gate.enter(), await gate.enter()
    with gate.closed():
        cleared = asyncio.create_task(gate.cleared())
        first.end()
        first.end()
        await asyncio.sleep(0)
        assert not cleared.done() and gate.num_inside == 1, f"{gate.num_inside} groups are inside"
        second.end()
        await cleared


async def test_a_group_enters_a_closed_gate_only_after_the_publish() -> None:
    gate = SamplingGate(inflight_updates=False)
    with gate.closed():
        entering = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        assert not entering.done() and gate.is_clear, "the group entered although a publish is due"
    (await entering).end()


async def test_a_gate_that_closes_again_at_once_lets_no_group_pass_in_between() -> None:
    gate = SamplingGate(inflight_updates=False)
    with gate.closed():
        entering = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
    with gate.closed():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not entering.done() and gate.num_inside == 0
    (await entering).end()


async def test_with_updates_in_flight_the_gate_never_closes() -> None:
    gate = SamplingGate(inflight_updates=True)
    with await gate.enter(), gate.closed():
        await gate.cleared()
        with await gate.enter():
            assert gate.is_clear and gate.num_inside == 2
    assert gate.num_inside == 0
