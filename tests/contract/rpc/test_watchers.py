"""Many watchers of one run, among them some that never read."""

import asyncio
from pathlib import Path

from shoal.v1 import coordinator_pb2 as pb
from tests.contract.rpc.test_hostile_clients import WIDE_OPEN, calls, connection
from tests.support.cluster import Cluster
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.waiting import PATIENCE_S

NUM_READING, NUM_DEAF, NUM_STEPS = 30, 100, 6


async def test_every_watcher_that_reads_gets_every_event_in_order_beside_many_that_never_read(
    cluster: Cluster, model: Path
) -> None:
    generator = ScriptedGenerator(cluster.plane)
    generator.may_sample.clear()
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, run={"num_steps": NUM_STEPS}), run_id="watched")
    deaf = connection(cluster.address, WIDE_OPEN)
    watch_run = "/shoal.v1.CoordinatorService/WatchRun"
    await asyncio.get_running_loop().sock_sendall(deaf, calls(watch_run, range(1, 2 * NUM_DEAF, 2)))

    async def watch(pause_s: float) -> list[int]:
        sequence = []
        async for response in cluster.stub.WatchRun(pb.WatchRunRequest(), timeout=PATIENCE_S):
            sequence.append(response.event.sequence)
            await asyncio.sleep(pause_s)
        return sequence

    watching = [asyncio.create_task(watch(0.02 if index % 2 else 0)) for index in range(NUM_READING)]
    generator.may_sample.set()
    _, events = await cluster.finish(NUM_STEPS)
    for sequence in await asyncio.gather(*watching):
        assert sequence == list(range(1, len(events) + 1)), sequence
    deaf.close()
