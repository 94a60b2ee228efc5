"""Episodes in mid-turn whose run is paused, stopped, gets other weights or loses its coordinator."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.client import coordinator, follow
from shoal.errors import InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import environment_pb2
from tests.contract.episodes.test_agents import Says, playing, rollouts_of
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.coordinator_process import CoordinatorProcess, workers
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage
from tests.support.scripted_workers import Plane, ScriptedLearner
from tests.support.waiting import eventually

GROUP_SIZE, GROUPS_PER_STEP = 2, 2


class HoldingStage(ScriptedStage):
    """Holds the answers to the first turn of groups from an order number on, until `may_answer`."""

    def __init__(self, first_held: int) -> None:
        super().__init__()
        self.first_held = first_held
        self.held: set[str] = set()

    async def _answer(
        self, episode_id: str, number: int, num_calls: int, turn: environment_pb2.PolicyTurn | None
    ) -> list[environment_pb2.RunEpisodeResponse]:
        if number == 1 and int(episode_id.split("/")[2]) >= self.first_held:
            self.held.add(episode_id)
            await self.may_answer.wait()
        return await super()._answer(episode_id, number, num_calls, turn)


def turns_of(policy: ScriptedPolicy) -> Counter[str]:
    """Returns how often each turn of each episode was asked for."""
    return Counter(request.request_id.rpartition("/call-")[0] for request in policy.requests)


async def test_a_pause_in_mid_turn_holds_the_next_turn_and_repeats_none(cluster: Cluster, model: Path) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), HoldingStage(first_held=0)
    await cluster.add_all(policy, rewards=(stage,))
    await cluster.start(episode_config(model, run={"num_steps": 1}, grpo={"max_staleness": 0}))
    await eventually(lambda: len(stage.held) == 4, "all four episodes are in their first turn")
    await cluster.pause()
    num_tokens = policy.num_tokens
    stage.may_answer.set()
    await eventually(lambda: len(stage.turns) == 4)
    await asyncio.sleep(0.2)
    assert policy.num_tokens == num_tokens, "turns are sampled in a pause"
    await cluster.resume()
    await cluster.finish()
    assert len(turns_of(policy)) == 12 and set(turns_of(policy).values()) == {1}, turns_of(policy)
    assert len(stage.starts) == 4, "an episode was played again"


async def test_a_stop_in_mid_turn_closes_the_episodes_and_a_resume_plays_them_from_the_beginning(
    cluster: Cluster, model: Path
) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), HoldingStage(first_held=2)
    await cluster.add_all(policy, rewards=(stage,))
    await cluster.start(episode_config(model, run={"num_steps": 3}), run_id="stopped")
    await eventually(lambda: len(stage.held) == 4, "the episodes of the second step are in their first turn")
    await cluster.stop(pb.STOP_MODE_NOW)
    run, events = await cluster.end()
    assert (run.state, run.policy_version) == (pb.RUN_STATE_STOPPED, 1), (run.message, kinds(events))
    await eventually(lambda: not stage.num_open, "the streams of the episodes have ended")
    stage.may_answer.set()
    await cluster.run_to_end({}, run_id="stopped", resume=True, step=3)
    groups = await cluster.groups()
    assert [group.order_number for group in groups] == list(range(6)), "a prompt was skipped or asked twice"
    for group in groups:
        assert [len(rollout.episode.turns) for rollout in group.rollouts] == [3, 3], group


async def test_a_drain_in_mid_turn_lets_the_episodes_end_and_trains_on_them(cluster: Cluster, model: Path) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), HoldingStage(first_held=2)
    await cluster.add_all(policy, rewards=(stage,))
    await cluster.start(episode_config(model, run={"num_steps": 50}))
    await eventually(lambda: len(stage.held) == 4, "the episodes of the second step are in their first turn")
    await cluster.stop(pb.STOP_MODE_DRAIN)
    stage.may_answer.set()
    run, events = await cluster.end()
    assert (run.state, run.policy_version) == (pb.RUN_STATE_STOPPED, 2), (run.message, kinds(events))
    groups = await cluster.groups()
    assert [group.state for group in groups] == ["TRAINED"] * 4 and not stage.num_open
    assert set(turns_of(policy).values()) == {1}, "a turn was sampled twice"


async def test_weights_that_come_in_mid_turn_sample_the_turns_behind_it(cluster: Cluster, model: Path) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), HoldingStage(first_held=2)
    await cluster.add_all(policy, rewards=(stage,))
    await cluster.start(episode_config(model, run={"num_steps": 2}, grpo={"max_staleness": 1}))
    await eventually(lambda: len(stage.held) == 4, "the episodes of the second step are in their first turn")
    await eventually(lambda: policy.num_loads == 2, "the weights of the first step are published")
    stage.may_answer.set()
    await cluster.finish()
    for group in await cluster.groups():
        is_held = group.order_number >= 2
        assert group.staleness == is_held, "an episode is as stale as its first turn"
        for rollout in group.rollouts:
            versions = [span.version.policy_version for span in rollout.version_spans]
            assert versions == ([0, 1, 1] if is_held else [0, 0, 0]), (group.order_number, versions)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    async with CoordinatorProcess.running(tmp_path / "runs") as process:
        yield process


async def test_episodes_of_a_killed_coordinator_are_played_again_and_count_once(
    process: CoordinatorProcess, model: Path
) -> None:
    plane = Plane()
    learner, policy, stage = ScriptedLearner(plane), ScriptedPolicy(plane), HoldingStage(first_held=4)
    async with coordinator(process.address) as stub, workers(process, learner, policy, stage):
        config = episode_config(model, run={"num_steps": 4}, checkpoint={"every_steps": 1})
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="killed")
        await stub.StartRun(request, timeout=60)
        await eventually(lambda: len(stage.held) == 4, "the episodes of the third step are in their first turn")
        await process.end(signal.SIGKILL)
        stage.may_answer.set()
        await process.start()
        events = [event async for event in follow(stub, "killed")]
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
        groups = (await stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    assert (run.state, run.policy_version) == (pb.RUN_STATE_FINISHED, 4), (run.message, kinds(events))
    assert [group.order_number for group in groups] == list(range(8)), "a prompt was skipped or asked twice"
    batches = Counter(
        message.group.group_id for batch in learner.batches for message in batch if message.HasField("group")
    )
    assert batches == Counter(group.group_id for group in groups), "a group was trained on twice, or lost"
    assert all(len(rollout.episode.turns) == 3 for group in groups for rollout in group.rollouts)
    assert not stage.num_open, "the episodes of the killed coordinator are open"


TOOLS = """
from shoal.environment import Environment, Observation, tool

class Adding(Environment):
    is_deterministic = True

    @tool
    def add(self, text: str):
        return Observation("ok", reward=float(len(text)), done=True)
"""


async def test_a_resume_with_code_that_lacks_a_tool_of_the_prompts_leaves_the_run_paused(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    says: Says = lambda text, seed: f"<add>{'x' * (seed % 7)}</add>"  # noqa: E731
    async with playing(cluster, model, file, "Adding", says, num_steps=4):
        await cluster.until("step")
        await cluster.pause()
        file.write_text(TOOLS.replace("def add", "def sum"))
        with pytest.raises(InvalidArgument, match="no tool 'add'"):
            await cluster.resume()
        assert (await cluster.run()).state == pb.RUN_STATE_PAUSED
        file.write_text(TOOLS.replace('"ok"', '"fine"'))
        await cluster.resume()
        rollouts = await rollouts_of(cluster)
    assert {outcome.ok for r in rollouts for turn in r.episode.turns for outcome in turn.tool_outcomes} == {True}
