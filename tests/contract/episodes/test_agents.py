"""Runs whose episodes are programs of their own: an agent written with the package `openai`, the policy endpoint over
HTTP, and a scripted generator, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from services.reward.service import RewardService
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire import completion_from_wire
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.pages import write_files
from tests.support.processes import serving_process
from tests.support.reward_client import ALLOWED
from tests.support.scripted_environment import ScriptedPolicy
from tests.support.scripted_workers import ENCODER
from tests.support.waiting import eventually

pytest.importorskip("openai")

AGENTS = '''
import asyncio
import json
import os
import urllib.request

from shoal.environment import Agent

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}


def user(text):
    return {"role": "user", "content": text}


def ask(policy, messages, **more):
    """Calls the policy with the standard library alone, which loads sooner than a client."""
    body = json.dumps({"model": policy.model, "messages": messages} | more).encode()
    headers = {"Authorization": f"Bearer {policy.api_key}"}
    request = urllib.request.Request(f"{policy.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


class Base(Agent):
    """An agent."""

    async def say(self, policy, messages, **more):
        return await asyncio.to_thread(ask, policy, messages, **more)


class Tools(Base):
    """Carries out the calls of its tool, and sums."""

    async def run(self, task, seed, policy):
        messages, total = [user(self.prompt[0].content)], 0
        for _ in range(6):
            answer = await self.say(policy, messages, tools=[TOOL])
            messages.append(answer)
            if not answer.get("tool_calls"):
                return total + len(answer["content"]) / 100
            for call in answer["tool_calls"]:
                total += int(json.loads(call["function"]["arguments"])["text"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"Result: {total}"})


class Compacting(Agent):
    """Talks for two turns, then goes on from a summary; asks somebody else on the way."""

    async def run(self, task, seed, policy):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key)

        async def say(messages, model=policy.model):
            return (await client.chat.completions.create(model=model, messages=messages)).choices[0].message

        messages = [user("first")]
        for number in range(2):
            messages += [await say(messages), user(f"more {number}")]
        summary = await say([user("summarize"), *messages], model=policy.auxiliary_model)
        messages = [user(f"so far: {summary.content}")]
        messages += [await say(messages), user("end")]
        return int((await say(messages)).content)


class Dying(Base):
    """Takes its process with it after its first call, once."""

    def __init__(self, marker):
        self.marker = marker

    async def run(self, task, seed, policy):
        answer = await self.say(policy, [user("hello")])
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return int(answer["content"])
        os._exit(3)


class Held(Base):
    """Asks once, waits for a file, and asks again."""

    def __init__(self, marker):
        self.marker = marker

    async def run(self, task, seed, policy):
        messages = [user("hello")]
        messages += [await self.say(policy, messages), user("again")]
        while not os.path.exists(self.marker):
            await asyncio.sleep(0.01)
        return int((await self.say(policy, messages))["content"])


class Paying(Agent):
    """Pays its turns, between which it asks in other contexts."""

    async def run(self, task, seed, policy):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key)
        messages = [user("hello")]
        for paid in (0.5, 0.25):
            answer = await client.chat.completions.create(model=policy.model, messages=messages)
            self.turn_rewards[answer.id] = paid * int(answer.choices[0].message.content)
            messages += [answer.choices[0].message, user("more")]
            await client.chat.completions.create(model=policy.model, messages=[user(f"aside {paid}")])


class Greedy(Base):
    """Calls until it is refused, and does not catch that."""

    async def run(self, task, seed, policy):
        messages = [user("again")]
        while True:
            messages += [await self.say(policy, messages, model="gpt-4", temperature=0), user("again")]
            self.reward = int(messages[-2]["content"])
'''


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agents") / "agents.py"
    path.write_text(AGENTS)
    return path


Says = Callable[[str, int], str]


@asynccontextmanager
async def playing(
    cluster: Cluster,
    model: Path,
    agents: Path,
    name: str,
    says: Says | None = None,
    settings: dict[str, Any] | None = None,
    num_steps: int = 1,
    **sections: Any,
) -> AsyncIterator[ScriptedPolicy]:
    """Starts a run whose steps have four episodes, each a run of the agent."""
    policy = ScriptedPolicy(cluster.plane, says or (lambda text, seed: f"{seed % 1000}"))
    reward = RewardService(ALLOWED)
    await cluster.add_all(policy, rewards=(reward,))
    config = episode_config(model, run={"num_steps": num_steps}, reward={"num_processes": 1}, **sections)
    try:
        environment = {"name": "counter", "source": f"{agents}:{name}", "settings": settings or {}}
        await cluster.start(config | {"environments": [environment]})
        yield policy
    finally:
        await reward.close()


async def rollouts_of(cluster: Cluster) -> list[pb.Rollout]:
    """Waits for the end of the run. Returns the rollouts, after each was read as a learner reads it."""
    await cluster.finish()
    return [rollout for group in await cluster.groups() for rollout in group.rollouts]


def trained(cluster: Cluster) -> list[rollout_pb2.Completion]:
    completions = [m.rollout.completion for batch in cluster.learner.batches for m in batch if m.HasField("rollout")]
    for message in completions:
        completion = completion_from_wire(message)
        assert completion.loss_mask is not None
        assert np.array_equal(np.isnan(completion.behavior_logprobs), ~completion.loss_mask)
        sampled = [index for turn in message.episode.turns for index in range(turn.start, turn.end)]
        assert np.flatnonzero(completion.loss_mask).tolist() == sampled, "exactly what was sampled counts"
    return completions


def decoded(completion: rollout_pb2.Completion, segment: rollout_pb2.EpisodeSegment) -> str:
    tokens = np.frombuffer(completion.token_ids, "<i4")[segment.start : segment.end]
    prompt = np.frombuffer(segment.prompt_token_ids, "<i4")
    return ENCODER.decode([*prompt.tolist(), *tokens.tolist()], skip_special_tokens=False)


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


async def test_an_agent_that_only_adds_messages_is_one_segment_token_for_token(
    cluster: Cluster, model: Path, agents: Path
) -> None:
    def says(text: str, seed: int) -> str:
        return "<add>3</add>" if text.count("Result") < 2 else "x" * (seed % 7)

    async with playing(cluster, model, agents, "Tools", says) as policy:
        rollouts = await rollouts_of(cluster)
    assert len(rollouts) == 4 and len(policy.requests) == 12
    for rollout in rollouts:
        assert rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and rollout.score.reward >= 6
        assert [call.arguments_json for turn in rollout.episode.turns for call in turn.message.tool_calls] == [
            '{"text": "3"}'
        ] * 2
        assert [turn.observations[0].content for turn in rollout.episode.turns[:2]] == ["Result: 3", "Result: 6"]
        (segment,) = rollout.episode.segments
        assert segment.messages[0].content.startswith("Question") and not segment.prompt_token_ids
        assert rollout.episode.stop_reason == "done" and not rollout.episode.truncated
    for completion in trained(cluster):
        (segment,) = completion.episode.segments
        whole = decoded(completion, segment)
        assert (
            whole.count("<add>3</add><|im_end|>\n<|im_start|>tool\nResult: 3<|im_end|>\n<|im_start|>assistant\n") == 1
        )


async def test_the_agent_of_the_documentation_runs(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    write_files("agents.md", tmp_path)
    rows = [{"messages": "Double a number.", "environment_task": {"number": number}} for number in range(64)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def says(text: str, seed: int) -> str:
        number = int(text.split(" times ")[0].rpartition(" ")[2])
        return str(2 * number) if "That is wrong." in text or seed % 2 else "I do not know"

    source = {"path": str(tmp_path / "train.jsonl"), "environment": "counter"}
    async with playing(cluster, model, tmp_path / "doubler.py", "Doubler", says, data={"sources": [source]}):
        rollouts = await rollouts_of(cluster)
    assert {(len(r.episode.turns), len(r.episode.segments), r.score.reward) for r in rollouts} == {
        (1, 1, 1),
        (2, 1, 0.5),
    }


async def test_an_agent_that_compacts_its_context_has_segments_that_share_its_reward(
    cluster: Cluster, model: Path, agents: Path
) -> None:
    async with playing(cluster, model, agents, "Compacting") as policy:
        rollouts = await rollouts_of(cluster)
    assert len(rollouts) == 4 and len(policy.requests) == 4 * 5, "four turns and one that is not trained on"
    for rollout in rollouts:
        assert [len(segment.messages) for segment in rollout.episode.segments] == [1, 1]
        assert len(rollout.episode.turns) == 4 and rollout.episode.num_auxiliary_turns == 1
    assert [float(rollout.text) for rollout in rollouts] == [rollout.score.reward for rollout in rollouts]
    for completion in trained(cluster):
        first, second = completion.episode.segments
        turns = [turn.end for turn in completion.episode.turns]
        assert (first.start, first.end, second.start, second.end) == (0, turns[1], turns[1], turns[3])
        assert decoded(completion, first).startswith(said("user", "first") + "<|im_start|>assistant\n")
        assert decoded(completion, second).startswith("<|im_start|>user\nso far: ")
        assert "summarize" not in decoded(completion, first) + decoded(completion, second)


async def test_an_agent_that_never_stops_calling_ends_at_the_limit_of_turns(
    cluster: Cluster, model: Path, agents: Path
) -> None:
    limits = {"tool_parser": "tag", "max_turns": 3}
    async with playing(cluster, model, agents, "Greedy", episodes=limits) as policy:
        rollouts = await rollouts_of(cluster)
    assert len(policy.requests) == 4 * 3, "nothing is sampled beyond the limit"
    assert {request.sampling.temperature for request in policy.requests} == {1.0}, "the run's, not the request's"
    for rollout in rollouts:
        assert (rollout.episode.stop_reason, rollout.episode.truncated) == ("max_turns", True)
        assert rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED
        assert len(rollout.episode.turns) == 3


async def test_rewards_of_turns_are_advantages_that_are_discounted_in_the_order_of_time(
    cluster: Cluster, model: Path, agents: Path
) -> None:
    episodes = {"tool_parser": "tag", "turn_rewards": "tokens", "turn_discount": 0.5}
    advantage = {"scale": "none"}
    says: Says = lambda text, seed: f"{seed % 7 + 1}"  # noqa: E731
    async with playing(cluster, model, agents, "Paying", says, episodes=episodes, advantage=advantage):
        rollouts = await rollouts_of(cluster)
    for rollout in rollouts:
        turns = rollout.episode.turns
        assert [turn.number for turn in turns] == [1, 3, 2, 4] and len(rollout.episode.segments) == 3
        said = [int(turn.message.content) for turn in turns]
        assert [turn.reward for turn in turns] == [0.5 * said[0], 0.25 * said[1], 0, 0]
        assert [turn.HasField("reward") for turn in turns] == [True, True, False, False]
        assert rollout.score.reward == 0, "the rewards of turns are no part of it"
    sent = [m.rollout for batch in cluster.learner.batches for m in batch if m.HasField("rollout")]
    for rollout in sent:
        advantages = np.frombuffer(rollout.token_advantages, "<f4")
        by_turn = {
            turn.number: set(advantages[turn.start : turn.end].tolist()) for turn in rollout.completion.episode.turns
        }
        (first,), (second,), (third,), (fourth,) = (by_turn[number] for number in (1, 2, 3, 4))
        assert second == pytest.approx(0.5 * third) and fourth == 0, by_turn
        # Compared over all paid turns of the group, then with what half of the next turn is worth.
        assert abs(first - 0.5 * second) > 1e-6 or third == 0, by_turn


async def test_agents_are_evaluated_with_one_version_of_the_weights_also_in_a_pause(
    cluster: Cluster, model: Path, agents: Path
) -> None:
    def says(text: str, seed: int) -> str:
        return "<add>3</add>" if text.count("Result") < 2 else "x" * (seed % 7)

    held_out = model.parent / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"messages": f"Held-out question {number}"}) + "\n" for number in range(3)))
    evaluation = {"sources": [{"path": str(held_out), "environment": "counter"}], "temperature": 0.5}
    async with playing(cluster, model, agents, "Tools", says, num_steps=50, evaluation=evaluation) as policy:
        events = await cluster.until("step")
        assert events[-1].kind == "step", [(event.kind, event.message) for event in events]
        await cluster.pause()
        answer = await cluster.evaluate()
        await cluster.stop()
        run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, (run.message, kinds(events))
    assert (answer.num_prompts, answer.num_scored, answer.metrics["eval/episodes/turns"]) == (3, 3, 3), answer
    assert answer.metrics["eval/episodes/segments"] == 1 and 6 <= answer.metrics["eval/scores"] < 6.07
    asked = [request for request in policy.requests if "/evaluation-" in request.request_id]
    steps = {request.request_id.split("/evaluation-")[1].split("/")[0] for request in asked}
    assert len(asked) == 2 * 3 * 3 and steps == {"0-1", "1-2"}, steps
    assert {request.sampling.temperature for request in asked} == {0.5}


async def test_agents_whose_reward_service_is_killed_run_again_at_another_one(
    cluster: Cluster, model: Path, agents: Path, tmp_path: Path
) -> None:
    marker, policy = tmp_path / "go", ScriptedPolicy(cluster.plane, lambda text, seed: f"{seed % 1000}")
    await cluster.add(cluster.learner, "learner-0")
    await cluster.add(policy, "generator-0")
    patient = {"worker_timeout_s": 600}  # The second service may take long to start.
    config = episode_config(model, run={"num_steps": 1}, reward={"num_processes": 1}, coordinator=patient)
    environment = {"name": "counter", "source": f"{agents}:Held", "settings": {"marker": str(marker)}}
    command = ("services.reward", "--coordinator", cluster.address, "--allow-verifier-folder", agents.parent)
    async with AsyncExitStack() as stack:
        first, _ = await stack.enter_async_context(serving_process(*command))
        await cluster.start(config | {"environments": [environment]})
        await eventually(lambda: len(policy.requests) == 4, "all agents have asked once")
        await stack.enter_async_context(serving_process(*command))
        began = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, began, 60)
        assert not alive, f"the agents outlive their service: {alive}"
        marker.touch()
        run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, (run.message, kinds(events))
    assert kinds(events).count("episode_replayed") == 4
    plays = sorted(request.request_id.split("/play-")[1] for request in policy.requests)
    assert plays == sorted(["1/turn-1/call-0", "2/turn-1/call-0", "2/turn-2/call-0"] * 4), plays
    completions = trained(cluster)
    rollouts = [rollout for group in await cluster.groups() for rollout in group.rollouts]
    assert [(len(r.episode.turns), r.score.outcome) for r in rollouts] == [(2, rollout_pb2.SCORE_OUTCOME_SCORED)] * 4
    (row,) = map(json.loads, (cluster.data_dir / run.run_id / "metrics.jsonl").read_text().splitlines())
    num_sampled = [sum(turn.end - turn.start for turn in completion.episode.turns) for completion in completions]
    assert row["episodes/policy_tokens"] == sum(num_sampled) / 4 and row["episodes/turns"] == 2, row
    assert row["episodes/failed_rate"] == 0


async def test_an_agent_whose_process_dies_runs_again_and_nothing_counts_twice(
    cluster: Cluster, model: Path, agents: Path, tmp_path: Path
) -> None:
    async with playing(cluster, model, agents, "Dying", settings={"marker": str(tmp_path / "died")}) as policy:
        rollouts = await rollouts_of(cluster)
    assert (tmp_path / "died").exists() and len(policy.requests) > 4
    assert {len(rollout.episode.turns) for rollout in rollouts} == {1}, (
        "what was said before the death is no part of it"
    )
    assert {rollout.score.outcome for rollout in rollouts} == {rollout_pb2.SCORE_OUTCOME_SCORED}
