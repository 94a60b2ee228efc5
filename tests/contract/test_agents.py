"""Runs whose episodes are programs of their own: an agent written with the package `openai`, the policy endpoint over
HTTP, and a scripted generator, over real sockets."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.reward.service import RewardService
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2, worker_pb2
from shoal.wire import completion_from_wire
from tests.contract.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.reward_client import ALLOWED
from tests.support.scripted_environment import ScriptedPolicy
from tests.support.scripted_workers import ENCODER

pytest.importorskip("openai")

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "agents.md"
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

    def client(self, policy):
        async def say(messages, **more):
            return await asyncio.to_thread(ask, policy, messages, **more)

        return say


class Tools(Base):
    """Carries out the calls of its tool, and sums."""

    async def run(self, task, seed, policy):
        say = self.client(policy)
        messages, total = [user(self.prompt[0].content)], 0
        for _ in range(6):
            answer = await say(messages, tools=[TOOL])
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
        answer = await self.client(policy)([user("hello")])
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return int(answer["content"])
        os._exit(3)


class Greedy(Base):
    """Calls until it is refused, and does not catch that."""

    async def run(self, task, seed, policy):
        say, messages = self.client(policy), [user("again")]
        while True:
            messages += [await say(messages, model="gpt-4", temperature=0), user("again")]
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
    **sections: Any,
) -> AsyncIterator[ScriptedPolicy]:
    """Starts a run of one step whose four episodes are runs of the agent."""
    policy, reward = (
        ScriptedPolicy(cluster.plane, says or (lambda text, seed: f"{seed % 1000}")),
        RewardService(ALLOWED),
    )
    await cluster.add(worker_pb2.WORKER_KIND_LEARNER, cluster.learner, "learner-0")
    await cluster.add(worker_pb2.WORKER_KIND_REWARD, reward, "reward-0")
    await cluster.add(worker_pb2.WORKER_KIND_GENERATOR, policy, "generator-0")
    config = episode_config(model, run={"num_steps": 1}, reward={"num_processes": 1}, **sections)
    try:
        environment = {"name": "counter", "source": f"{agents}:{name}", "settings": settings or {}}
        await cluster.start(config | {"environments": [environment]})
        yield policy
    finally:
        await reward.close()


async def rollouts_of(cluster: Cluster) -> list[pb.Rollout]:
    """Waits for the end of the run. Returns the rollouts, after each was read as a learner reads it."""
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, (run.message, kinds(events))
    return [rollout for group in await cluster.groups() for rollout in group.rollouts]


def trained(cluster: Cluster) -> list[rollout_pb2.Completion]:
    """What the learner got, checked."""
    completions = [m.rollout.completion for batch in cluster.learner.batches for m in batch if m.HasField("rollout")]
    for message in completions:
        completion = completion_from_wire(message)
        assert completion.loss_mask is not None
        assert np.array_equal(np.isnan(completion.behavior_logprobs), ~completion.loss_mask)
        sampled = [index for turn in message.episode.turns for index in range(turn.start, turn.end)]
        assert np.flatnonzero(completion.loss_mask).tolist() == sampled, "exactly what was sampled counts"
    return completions


def decoded(completion: rollout_pb2.Completion, segment: rollout_pb2.EpisodeSegment) -> str:
    """The segment with its prompt, special tokens included."""
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
    path = tmp_path / "doubler.py"
    path.write_text(DOCUMENTATION.read_text().split("```python\n")[1].split("```")[0])
    rows = tmp_path / "numbers.jsonl"
    rows.write_text("".join(json.dumps({"messages": "Double it.", "task": {"number": n}}) + "\n" for n in range(64)))

    def says(text: str, seed: int) -> str:
        number = int(text.split(" times ")[0].rpartition(" ")[2])
        return str(2 * number) if "No." in text or seed % 2 else "I do not know"

    source = {"path": str(rows), "environment": "counter", "environment_task_column": "task"}
    async with playing(cluster, model, path, "Doubler", says, data={"sources": [source]}):
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
