"""Defects of open-instruct's rollouts with tools, by the letters under which they were found: tests for what could be
ours. Most are in the tests of the part that could have it; those here have no other place."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ResourceExhausted
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.environment_client import staged
from tests.support.repository import ROOT
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage

HERE, PLAYER, ENVIRONMENTS = (
    "tests/contract/episodes/test_defects.py",
    "tests/unit/services/coordinator/rollout/episodes/test_episode_player.py",
    "tests/contract/environments/test_processes.py",
)
DEFECTS = {
    "a: the first observation is thrown away": (
        PLAYER,
        "test_the_tokens_are_what_the_policy_said_between_what_the_environment_said",
    ),
    "b: the policy never answers to the last result": (
        PLAYER,
        "test_after_the_last_turn_the_policy_may_answer_to_the_results_once",
    ),
    "b: parallel calls use up the turns": (HERE, "test_calls_of_one_turn_are_one_turn"),
    "c: a malformed or unknown call ends the episode without a word": (
        HERE,
        "test_a_malformed_call_and_one_of_no_tool_are_told_to_the_policy_and_end_nothing",
    ),
    "d: arguments as a text of JSON end the run": (
        "tests/unit/shoal/episodes/tool_calls/test_hermes.py",
        "test_arguments_that_are_a_text_of_json_are_parsed",
    ),
    "e: each of several results opens an answer": (
        "tests/unit/shoal/episodes/test_suffix.py",
        "test_all_results_of_a_turn_are_rendered_in_one_go_with_one_beginning_of_an_answer",
    ),
    "f: a result follows a turn that has no end": (
        PLAYER,
        "test_a_turn_that_is_cut_at_its_own_limit_gets_its_end_of_turn_and_an_answer",
    ),
    "g: every sample holds a place in every environment": (
        HERE,
        "test_an_episode_takes_a_place_in_its_own_environment",
    ),
    "g: a counter without a target in the row raises": (
        "tests/unit/services/reward/environments/builtin/test_games.py",
        "test_a_counter_without_a_task_has_the_target_of_the_settings_and_a_wrong_submit_costs",
    ),
    "h: what the data name and nobody declared fails late": (
        "tests/contract/episodes/test_episodes.py",
        "test_a_row_of_an_undeclared_environment_is_refused_before_the_run_begins",
    ),
    "i: a call that timed out goes on in a process that is used again": (
        ENVIRONMENTS,
        "test_a_call_that_hangs_fails_its_episode_and_the_others_of_its_process_go_on",
    ),
    "i: a dead process is used again": (ENVIRONMENTS, "test_an_episode_whose_process_is_killed_goes_on_by_replay"),
    "j: nobody closes an environment": (ENVIRONMENTS, "test_a_stream_that_ends_early_frees_its_episode"),
    "k: an episode that a limit cuts off counts as stopped": (
        PLAYER,
        "test_an_endless_game_ends_at_the_limit_of_turns",
    ),
    "l: rewards of environments and of verifiers differ by a factor of ten": (
        "tests/unit/services/reward/test_compose.py",
        "test_a_verifier_and_an_environment_pay_alike_unless_the_configuration_says_otherwise",
    ),
    "m: equal contexts have equal draws": (
        PLAYER,
        "test_each_turn_is_sampled_behind_everything_before_it_with_a_seed_of_its_own",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_has_its_test(defect: str) -> None:
    file, name = DEFECTS[defect]
    assert re.search(rf"def {name}\b", (ROOT / file).read_text()), f"{file} has no {name}"
    assert {each[0] for each in DEFECTS} == set("abcdefghijklm")


async def _played(cluster: Cluster, model: Path, *said: str, **episodes: Any) -> list[Any]:
    """Plays a run whose policy says these turns; returns its episodes."""
    stage = ScriptedStage()

    def says(text: str, seed: int) -> str:
        return said[min(text.count("assistant\n") - 1, len(said) - 1)]

    await cluster.add_all(ScriptedPolicy(cluster.plane, says), rewards=(stage,))
    await cluster.start(
        episode_config(
            model,
            run={"num_steps": 1},
            sampling={"max_completion_tokens": 1500},
            episodes={"tool_parser": "tag"} | episodes,
        )
    )
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, (run.message, kinds(events))
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
