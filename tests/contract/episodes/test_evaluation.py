"""Held-out questions that are played as episodes, with scripted workers over real sockets."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, rollout_pb2
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage
from tests.support.waiting import eventually


def evaluated_config(model: Path, evaluation: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Configures a run of episodes with three held-out games and three sums of one turn."""
    games = model.parent / "games.jsonl"
    games.write_text("".join(json.dumps({"messages": f"Held-out question {number}"}) + "\n" for number in range(3)))
    sources = [
        {"path": str(games), "environment": "counter", "name": "games"},
        {"task": "arithmetic", "task_size": 3, "name": "sums"},
    ]
    return episode_config(model, evaluation={"sources": sources} | (evaluation or {}), **sections)


def asked(*policies: ScriptedPolicy) -> list[generator_pb2.GenerateGroupRequest]:
    return [r for policy in policies for r in policy.requests if "/evaluation-" in r.request_id]


def rows_of(cluster: Cluster, run: pb.Run) -> list[dict[str, float]]:
    lines = (cluster.data_dir / run.run_id / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "eval/num_prompts" in row]


async def test_games_and_single_turns_are_evaluated_together_before_and_after_training(
    cluster: Cluster, model: Path
) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), ScriptedStage()
    await cluster.add_all(policy, rewards=(stage,))
    settings = {"samples_per_prompt": 2, "temperature": 0.5, "max_completion_tokens": 300}
    run, events = await cluster.run_to_end(evaluated_config(model, settings))
    rows = rows_of(cluster, run)
    assert [row["step"] for row in rows] == [0, 2]
    for row in rows:
        assert (row["eval/num_completions"], row["eval/unscored_rate"]) == (12, 0), row
        assert row["eval/episodes/turns"] == 3 and row["eval/episodes/failed_rate"] == 0, row
        # The environment pays 1.5 for the first sample of a game, and 2.5 for the second: all are correct.
        assert row["eval/source/games/scores"] == 2 and row["eval/source/sums/scores"] == 1.5, row
        assert row["eval/pass_at_2"] == 1 and row["eval/pass_at_2_low"] < 1, row
    assert rows[1]["eval/correct_rate_change"] == 0
    turns = [request for request in asked(policy) if "/turn-" in request.request_id]
    assert len(turns) == 2 * 3 * 2 * 3 and {request.sampling.temperature for request in turns} == {0.5}
    first, last = ({tuple(r.seeds) for r in turns if f"/evaluation-{step}-" in r.request_id} for step in (0, 2))
    assert first == last, "two policies draw the same numbers"
    seeds = {step: [s.seed for s in stage.starts if f"/evaluation-{step}-" in s.episode_id] for step in (0, 2)}
    training = {start.seed for start in stage.starts if "/evaluation-" not in start.episode_id}
    assert sorted(seeds[0]) == sorted(seeds[2]) and len(set(seeds[0])) == 3 and not training & set(seeds[0])
    (message, _) = [event.message for event in events if event.kind == "evaluation"]
    assert "of 6 held-out questions" in message and "95% interval" in message and "games 100.0%" in message, message


async def test_a_held_out_question_offers_the_tools_of_its_row(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": "All"}\n{"messages": "One", "tools": ["add"]}\n{"messages": "None", "tools": []}\n')
    statuses: dict[str, set[int]] = {}
    told: dict[str, list[str] | None] = {}

    class Stage(ScriptedStage):
        async def _answer(self, episode_id: str, number: int, num_calls: int, turn: Any) -> Any:
            if "/evaluation-" in episode_id and turn is not None:
                start = next(start for start in self.starts if start.episode_id == episode_id)
                question = start.messages[0].content
                told[question] = list(start.tools.names) if start.HasField("tools") else None
                statuses.setdefault(question, set()).update(call.status for call in turn.message.tool_calls)
            return await super()._answer(episode_id, number, num_calls, turn)

    await cluster.add_all(ScriptedPolicy(cluster.plane), rewards=(Stage(),))
    evaluation = {"sources": [{"path": str(rows), "environment": "counter"}], "on_start": False}
    await cluster.run_to_end(evaluated_config(model, evaluation, run={"num_steps": 1}))
    offered, withheld = {rollout_pb2.TOOL_CALL_STATUS_OK}, {rollout_pb2.TOOL_CALL_STATUS_UNKNOWN_TOOL}
    assert statuses == {"All": offered, "One": offered, "None": withheld}
    assert told == {"All": None, "One": ["add"], "None": []}, "what the environment was told"


async def test_a_generator_that_is_killed_in_an_evaluation_costs_the_turn_in_flight_alone(
    cluster: Cluster, model: Path
) -> None:
    held, rescuer, stage = ScriptedPolicy(cluster.plane), ScriptedPolicy(cluster.plane), ScriptedStage()
    held.holds_after, held.holds_turn = 6, 2
    await cluster.add_all(held, rewards=(stage,))
    await cluster.start(evaluated_config(model, run={"num_steps": 1}))
    await eventually(lambda: held.num_held >= 3, "all three games are in their second turn")
    await cluster.add(rescuer, "generator-1")
    await eventually(lambda: rescuer.loaded.is_set(), "the second generator has the weights")
    await cluster.kill("generator-0")
    run, _ = await cluster.finish()
    first = [r.request_id.split("/turn-")[1] for r in asked(rescuer) if "/evaluation-0-" in r.request_id]
    assert sorted(turn for turn in first if "/call" in turn) == sorted(["2/call-1", "3/call-0"] * 3), first
    assert [row["eval/unscored_rate"] for row in rows_of(cluster, run)] == [0, 0]


async def test_a_run_of_single_turns_may_be_evaluated_with_episodes(cluster: Cluster, model: Path) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), ScriptedStage()
    await cluster.add_all(policy, rewards=(stage,))
    config = evaluated_config(model, run={"num_steps": 1}, data={"sources": [{"task": "arithmetic", "task_seed": 9}]})
    run, _ = await cluster.run_to_end(config)
    assert [row["eval/episodes/turns"] for row in rows_of(cluster, run)] == [3, 3]


async def test_a_task_that_the_environment_refuses_is_an_unanswered_question(cluster: Cluster, model: Path) -> None:
    policy, stage = ScriptedPolicy(cluster.plane), ScriptedStage()
    stage.refused = "Held-out question 1"
    await cluster.add_all(policy, rewards=(stage,))
    run, _ = await cluster.run_to_end(evaluated_config(model, run={"num_steps": 1}))
    assert [row["eval/unscored_rate"] for row in rows_of(cluster, run)] == [pytest.approx(1 / 6)] * 2
