"""The gate between sampling and publishes."""

import asyncio

from services.coordinator.rollout.sampling_gate import SamplingGate


async def test_a_gate_that_closes_again_at_once_lets_no_group_pass_in_between() -> None:
    gate = SamplingGate(inflight_updates=False)
    with gate.closed():
        entering = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
    with gate.closed():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not entering.done() and gate.num_inside == 0
    (await entering).close()
