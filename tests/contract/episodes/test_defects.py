"""Defects of other rollouts with tools that Shoal must not have, as far as no part of it has the test."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ResourceExhausted
from shoal.v1 import rollout_pb2
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster
from tests.support.environment_client import staged
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage


async def _played(cluster: Cluster, model: Path, *said: str, **episodes: Any) -> list[Any]:
    """Plays a run whose policy says these turns; returns its episodes."""
    stage = ScriptedStage()

    def says(text: str, seed: int) -> str:
        return said[min(text.count("assistant\n") - 1, len(said) - 1)]

    await cluster.add_all(ScriptedPolicy(cluster.plane, says), rewards=(stage,))
    await cluster.run_to_end(
        episode_config(
            model,
            run={"num_steps": 1},
            sampling={"max_completion_tokens": 1500},
            episodes={"tool_parser": "tag"} | episodes,
        )
    )
    return [rollout.episode for group in await cluster.groups() for rollout in group.rollouts]


async def test_calls_of_one_turn_are_one_turn(cluster: Cluster, model: Path) -> None:
    two = "".join(f'<tool_call>{{"name": "add", "arguments": {{"text": "{n}"}}}}</tool_call>' for n in (1, 2))
    for episode in await _played(cluster, model, two, two, "3", max_turns=3, tool_parser="hermes"):
        assert [len(turn.message.tool_calls) for turn in episode.turns] == [2, 2, 0], episode
        assert episode.stop_reason == "no_call" and not episode.truncated, episode.stop_reason


async def test_a_malformed_call_and_one_of_no_tool_are_told_to_the_policy_and_end_nothing(
    cluster: Cluster, model: Path
) -> None:
    hermes = ("<tool_call>{oops</tool_call>", '<tool_call>{"name": "subtract", "arguments": {}}</tool_call>', "3")
    for episode in await _played(cluster, model, *hermes, tool_parser="hermes"):
        statuses = [[call.status for call in turn.message.tool_calls] for turn in episode.turns]
        assert statuses == [[rollout_pb2.TOOL_CALL_STATUS_MALFORMED], [rollout_pb2.TOOL_CALL_STATUS_UNKNOWN_TOOL], []]
        assert [len(turn.observations) for turn in episode.turns] == [1, 1, 0], "each is answered"
        assert episode.stop_reason == "no_call" and episode.outcome == rollout_pb2.SCORE_OUTCOME_SCORED


async def test_an_episode_takes_a_place_in_its_own_environment() -> None:
    async with staged() as stage:
        await stage.configure({"name": "counter", "max_episodes": 1}, {"name": "guess_number", "max_episodes": 1})
        first, other = stage.play("counter"), stage.play("guess_number")
        async with asyncio.timeout(60):
            await first.observe()
            await other.observe()
            with pytest.raises(ResourceExhausted, match=r"environments\.counter\.max_episodes"):
                await stage.play("counter").observe()
