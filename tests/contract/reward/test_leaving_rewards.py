"""SIGTERM to a reward service: it hands back what it has not begun, and finishes the rest."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Aborted
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from tests.support.cluster import Cluster, kinds
from tests.support.processes import serving_process
from tests.support.reward_client import FIVE, HANG, TIMEOUT_S, Client, RewardClient, completion_request, prompt_request
from tests.support.scripted_workers import Plane, ScriptedGenerator, arithmetic_config
from tests.support.waiting import eventually

NUM_GROUPS, GROUP_SIZE = 4, 3


class HoldingGenerator(ScriptedGenerator):
    """Finishes one completion of each group, and the others once it may go on."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(plane)
        self.may_go_on = asyncio.Event()

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        async for response in super().GenerateGroup(request, context):
            yield response
            if response.HasField("completion"):
                await self.may_go_on.wait()


async def test_streams_on_which_nothing_is_scored_end_at_once_when_the_service_is_told_to_end(client: Client) -> None:
    await client.configured(num_processes=1)
    streams = [client.open_stream(), client.open_stream(prompt_request([FIVE]))]
    scored = client.open_stream(prompt_request([FIVE]), completion_request(0, "5"))
    assert (await anext(scored)).score.reward == 1.0
    ends = [asyncio.ensure_future(anext(stream)) for stream in (*streams, scored)]
    await asyncio.wait_for(client.service.drain(3600), TIMEOUT_S)
    for end in ends:
        with pytest.raises(Aborted) as error:
            await asyncio.wait_for(end, TIMEOUT_S)
        assert error.value.reason == "SHUTTING_DOWN"
    with pytest.raises(Aborted):
        await client.score([FIVE], ["5"])


async def test_a_leaving_service_finishes_the_completions_that_it_scores_and_takes_no_others(
    client: Client, custom: dict[str, Any], tmp_path: Path
) -> None:
    await client.configured(num_processes=2, custom=custom)
    files = [tmp_path / "first", tmp_path / "second"]
    requests = [completion_request(index, str(file)) for index, file in enumerate(files)]
    stream = client.open_stream(prompt_request([HANG]), *requests)
    first = asyncio.ensure_future(anext(stream))
    await client.until_running(2)
    draining = asyncio.create_task(client.service.drain(3600))
    await client.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_LEAVING)
    files[1].touch()
    assert (await first).score.sample_index == 1
    assert not draining.done(), "it leaves before its last completion is scored"
    files[0].touch()
    assert (await anext(stream)).score.sample_index == 0
    with pytest.raises(Aborted):
        await anext(stream)
    await asyncio.wait_for(draining, TIMEOUT_S)


async def test_a_leaving_service_gives_up_a_completion_that_outlasts_its_grace(
    client: Client, custom: dict[str, Any], tmp_path: Path
) -> None:
    await client.configured(num_processes=1, timeout_s=600.0, custom=custom)
    requests = [prompt_request([HANG]), completion_request(0, str(tmp_path / "never"))]
    scoring = asyncio.create_task(client.send(requests))
    await client.until_running(1)
    await asyncio.wait_for(client.service.drain(0.1), TIMEOUT_S)
    with pytest.raises(Aborted) as error:
        await asyncio.wait_for(scoring, TIMEOUT_S)
    assert error.value.reason == "SHUTTING_DOWN"


async def test_a_reward_process_that_gets_sigterm_in_the_middle_of_groups_ends_and_costs_nothing(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    """Half of the groups are scored there, and most of their completions are still being sampled."""
    generator = HoldingGenerator(cluster.plane)
    await cluster.add(cluster.learner, "learner-0")
    await cluster.add(generator, "generator-0")
    async with AsyncExitStack() as stack:
        options = ("--coordinator", cluster.address, "--grace-s", "3600")  # It outlasts the test.
        logs = [tmp_path / f"reward-{number}.log" for number in range(2)]
        rewards = [
            await stack.enter_async_context(serving_process("services.reward", *options, "--log-file", log))
            for log in logs
        ]
        grpo = {"max_staleness": 0, "group_size": GROUP_SIZE, "groups_per_step": NUM_GROUPS, "keep_zero_signal": True}
        settings = {"run": {"num_steps": 1}, "coordinator": {"max_group_losses": 1}, "reward": {"num_processes": 1}}
        # A service that registers later could find all groups at the other one.
        await eventually(lambda: len(cluster.registry.alive(worker_pb2.WORKER_KIND_REWARD)) == 2, "both register")
        await cluster.start(arithmetic_config(model, grpo=grpo, **settings))
        clients = [
            RewardClient(RewardServiceStub(connect(address, "shoal.v1.RewardService"))) for _, address in rewards
        ]

        async def scored_by(*clients: RewardClient) -> list[int]:
            return [(await client.status()).num_scored.get("scored", 0) for client in clients]

        async def has_scored() -> bool:
            return sum(await scored_by(*clients)) == NUM_GROUPS

        await eventually(has_scored, "one completion of each group is scored")
        assert await scored_by(*clients) == [2, 2], "the groups are not shared by the services"
        leaving = rewards[0][0]
        leaving.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(leaving.wait(), TIMEOUT_S) == 0, "it did not end in order"
        assert not generator.may_go_on.is_set()
        generator.may_go_on.set()
        run, events = await cluster.end()
        assert await scored_by(clients[1]) == [NUM_GROUPS * GROUP_SIZE - 2], (
            "a completion was scored twice, or not at all"
        )
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    lost = {"worker_lost", "worker_out_of_reach", "group_dropped", "group_reissued"} & set(kinds(events))
    assert not lost, [(event.kind, event.message) for event in events if event.kind in lost]
    assert kinds(events).count("scoring_repeated") == 2, "each of its two groups goes on elsewhere, once"
    assert kinds(events).count("worker_leaving") == 1
    assert [group.state for group in await cluster.groups()] == ["TRAINED"] * NUM_GROUPS
