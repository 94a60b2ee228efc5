"""Runs whose prompts are played as episodes, with scripted workers over real sockets."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.coordinator.rollout.episodes import stream as episode_stream
from services.coordinator.workers import lost_work
from services.reward.service import RewardService
from shoal.telemetry import names
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire import completion_from_wire
from tests.support.cluster import Cluster, kinds
from tests.support.reward_client import ALLOWED
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage
from tests.support.scripted_workers import ENCODER, arithmetic_config
from tests.support.tiny_model import END_OF_TEXT
from tests.support.waiting import eventually

FAILED = rollout_pb2.SCORE_OUTCOME_FAILED


def episode_config(model: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    rows = model.parent / "questions.jsonl"
    if not rows.exists():
        rows.write_text("".join(json.dumps({"messages": f"Question {number}"}) + "\n" for number in range(64)))
    config = arithmetic_config(
        model,
        data={"sources": [{"path": str(rows), "environment": "counter"}]},
        sampling={"max_completion_tokens": 400},
        run={"num_steps": 2},
        grpo={"group_size": 2, "groups_per_step": 2, "max_staleness": 0},
        episodes={"tool_parser": "tag"},
    )
    for name, values in sections.items():
        config[name] = config.get(name, {}) | values
    return config | {"environments": [{"name": "counter", "server": "127.0.0.1:1"}]}


async def test_an_episode_is_one_completion_whose_environment_tokens_do_not_count(
    cluster: Cluster, model: Path
) -> None:
    stage = ScriptedStage()
    await cluster.add_all(ScriptedPolicy(cluster.plane), rewards=(stage,))
    await cluster.run_to_end(episode_config(model))
    for completion in stage.episodes:
        completion_from_wire(completion)  # As a learner reads it.
        mask = np.frombuffer(completion.loss_mask, np.uint8).astype(bool)
        logprobs = np.frombuffer(completion.behavior_logprobs, "<f4")
        assert len(completion.episode.turns) == 3 and completion.episode.stop_reason == "no_call"
        assert np.array_equal(np.isnan(logprobs), ~mask), "exactly the environment's tokens have no log-probability"
        sampled = [index for turn in completion.episode.turns for index in range(turn.start, turn.end)]
        assert np.flatnonzero(mask).tolist() == sampled
    assert {len(batch) for batch in cluster.learner.batches} == {7} and stage.num_open == 0
    for rollout in [rollout for group in await cluster.groups() for rollout in group.rollouts]:
        turns = rollout.episode.turns
        assert [call.arguments_json for turn in turns for call in turn.message.tool_calls] == ['{"text": "1"}'] * 2
        assert [turn.observations[0].content for turn in turns[:2]] == ["Result: 1", "Result: 2"]
        assert rollout.text == turns[-1].message.content
    sent = [m.rollout.completion.episode for m in cluster.learner.batches[0] if m.HasField("rollout")]
    assert not any(turn.HasField("message") or turn.observations for episode in sent for turn in episode.turns)


async def test_the_words_of_a_turn_are_without_the_models_own_end_of_sequence(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    with_two_ends = shutil.copytree(model, tmp_path / "model")
    config = json.loads((with_two_ends / "config.json").read_text())
    ends = {"eos_token_id": [config["eos_token_id"], ENCODER.token_to_id(END_OF_TEXT)]}
    (with_two_ends / "config.json").write_text(json.dumps(config | ends))
    stage, policy = ScriptedStage(), ScriptedPolicy(cluster.plane, lambda text, seed: "42")
    policy.end = ENCODER.token_to_id(END_OF_TEXT)
    await cluster.add_all(policy, rewards=(stage,))
    await cluster.run_to_end(episode_config(with_two_ends, run={"num_steps": 1}))
    assert {completion.text for completion in stage.episodes} == {"42"}, "as for a single turn"


async def test_one_trace_follows_a_group_over_the_turns_and_tool_calls_of_its_episodes_to_the_weights(
    cluster: Cluster, model: Path, exported: InMemorySpanExporter
) -> None:
    await cluster.add_all(ScriptedPolicy(cluster.plane), rewards=(ScriptedStage(),))
    await cluster.run_to_end(episode_config(model, run={"num_steps": 1}))
    spans = exported.get_finished_spans()
    for group in await cluster.groups():
        trace = [span for span in spans if f"{span.context.trace_id:032x}" == group.trace_id]
        by_id = {span.context.span_id: span for span in trace}
        seen = Counter(_path(span, by_id) for span in trace)
        episode = "group.issue/episode.play"
        # Two episodes of three turns, two of them with a call; the environment begins, and answers each turn.
        wanted = {episode: 2, f"{episode}/episode.turn": 6, f"{episode}/episode.environment": 8}
        wanted |= {f"{episode}/episode.environment/episode.tool_call": 4}
        wanted |= {f"group.issue/{name}": 1 for name in ("group.score", "weights.publish")}
        assert wanted.items() <= seen.items(), seen
        for span in trace:
            if span.name == names.EPISODE_TOOL_CALL:
                assert dict(span.attributes or {}) == {names.TOOL: "add", names.OK: True}
                assert span.start_time and span.end_time and span.end_time - span.start_time == 10_000_000, span


def _path(span: ReadableSpan, by_id: dict[int, ReadableSpan]) -> str:
    """Returns the names of a span and of those around it."""
    above = span.parent and by_id.get(span.parent.span_id)
    return f"{_path(above, by_id)}/{span.name}" if above else span.name


async def test_a_turn_goes_on_elsewhere_from_what_its_killed_generator_reported(cluster: Cluster, model: Path) -> None:
    held, rescuer = ScriptedPolicy(cluster.plane), ScriptedPolicy(cluster.plane)
    held.holds_after = 6
    held.holds_turn = 2
    stage = ScriptedStage()
    await cluster.add_all(held, rewards=(stage,))
    await cluster.start(episode_config(model, run={"num_steps": 1}, generator={"report_every_tokens": 4}))
    await eventually(lambda: held.num_held == 4, "all four episodes are in their second turn")
    await cluster.add(rescuer, "generator-1")
    await cluster.until(lambda event: event.kind == "worker_joined" and "generator" in event.message)
    await eventually(lambda: rescuer.loaded.is_set(), "the second generator has the weights")
    await cluster.kill("generator-0")
    _, events = await cluster.finish()
    turns = [request.request_id.split("/turn-")[1] for request in rescuer.requests]
    assert sorted(turns) == sorted(["2/call-1", "3/call-0"] * 4), "no turn before the kill is sampled again"
    resumed = [request for request in rescuer.requests if "/turn-2/" in request.request_id]
    assert [len(request.prefixes[0].token_ids) // 4 for request in resumed] == [6] * 4
    assert "group_reissued" not in kinds(events) and len(stage.episodes) == 4
    for rollout in [rollout for group in await cluster.groups() for rollout in group.rollouts]:
        texts = [turn.message.tool_calls[0].raw for turn in rollout.episode.turns[:2]]
        assert texts == ["<add>1</add>"] * 2, "the two parts of the turn are one"


async def test_a_killed_environment_is_played_again_from_the_recorded_turns(cluster: Cluster, model: Path) -> None:
    dying, stage = ScriptedStage(), ScriptedStage()
    dying.dies_at = 2
    policy = ScriptedPolicy(cluster.plane)
    await cluster.add_all(policy, rewards=(dying,))
    await cluster.start(episode_config(model, run={"num_steps": 1}, coordinator={"worker_timeout_s": 60}))
    await cluster.until("episode_replayed")
    await cluster.add(stage, "reward-1")
    await cluster.finish()
    replayed = [[turn.number for turn in start.replay] for start in stage.starts]
    assert len(replayed) == 4 and all(replayed), f"each went on from its turns: {replayed}"
    asked = [request.request_id.rpartition("/call-")[0] for request in policy.requests]
    assert len(asked) == len(set(asked)) == 12, "no turn is sampled twice"
    assert {completion.episode.outcome for completion in stage.episodes} == {rollout_pb2.SCORE_OUTCOME_SCORED}


async def test_episodes_that_break_or_hang_are_failed_and_their_siblings_are_trained_on(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_stream, "GRACE_S", 0.2)
    stage = ScriptedStage()
    stage.fails_at, stage.fails_for = 1, "/0"
    stage.hangs_at, stage.hangs_for = 2, "/1"
    await cluster.add_all(ScriptedPolicy(cluster.plane), rewards=(stage,))
    limits = {"tool_parser": "tag", "max_losses": 1, "call_timeout_s": 0.2}
    config = episode_config(
        model, run={"num_steps": 1}, grpo={"group_size": 4, "groups_per_step": 1, "max_staleness": 0}, episodes=limits
    )
    await cluster.run_to_end(config)
    outcomes = {completion.sample_index: completion.episode for completion in stage.episodes}
    failed = {index: episode.detail for index, episode in outcomes.items() if episode.outcome == FAILED}
    assert failed.keys() == {0, 1} and "division" in failed[0] and "did not answer" in failed[1], failed
    trained = [message.rollout.completion.sample_index for message in cluster.learner.batches[0][2:]]
    assert trained == [2, 3], "a failure is no reward of 0"
    assert stage.num_open == 0, "what hangs is let go"
    group = (await cluster.groups())[0]
    assert [rollout.episode.stop_reason for rollout in group.rollouts] == ["failed", "failed", "no_call", "no_call"]


@pytest.mark.parametrize("how", ["fails", "is lost"])
async def test_an_environment_that_is_out_pauses_the_run_and_its_episodes_are_played_again(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.0)
    stage, policy = ScriptedStage(), ScriptedPolicy(cluster.plane)
    await cluster.add_all(policy, rewards=(stage,))
    config = episode_config(
        model,
        run={"num_steps": 6},
        checkpoint={"every_steps": 1},
        reward={"outage_window": 8},
        episodes={"tool_parser": "tag"},
    )
    await cluster.start(config)
    await cluster.until("step")
    if how == "fails":
        stage.fails_at = 2
    else:
        stage.is_broken = True
    events = await cluster.until("environment_outage")
    assert " counter " in events[-1].message and "shoal run resume" in events[-1].message, events[-1]
    await eventually(lambda: stage.num_open == 0, "what was in flight has failed")
    assert (await cluster.run()).state == pb.RUN_STATE_PAUSED
    stage.fails_at, stage.is_broken = None, False
    await cluster.resume()
    _, events = await cluster.finish()
    assert kinds(events).count("environment_outage") == 1 and "group_dropped" not in kinds(events), kinds(events)
    groups = await cluster.groups()
    outcomes = {rollout.score.outcome for group in groups for rollout in group.rollouts}
    assert outcomes == {rollout_pb2.SCORE_OUTCOME_SCORED} and {group.state for group in groups} == {"TRAINED"}
    assert len(stage.episodes) == 6 * 2 * 2, "each episode is scored once"


async def test_an_environment_that_the_service_lacks_is_refused(cluster: Cluster, model: Path) -> None:
    stage = ScriptedStage()
    stage.name = "another"
    await cluster.add_all(ScriptedPolicy(cluster.plane), rewards=(stage,))
    await cluster.start(episode_config(model))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "names the environment 'counter'" in run.message, run.message


async def test_a_calculator_of_a_real_reward_service_pays_for_the_call_and_for_the_answer(
    cluster: Cluster, model: Path
) -> None:
    def says(text: str, seed: int) -> str:
        a, b = text.rpartition("What is ")[2].split("?")[0].split(" times ")
        if "Result:" in text.rpartition("What is ")[2]:
            return str(int(a) * int(b)) if seed % 3 else "0"
        return f"<calc>{a}*{b}</calc>" if seed % 2 else "I do not know."

    reward = RewardService(ALLOWED)
    try:
        await cluster.add_all(ScriptedPolicy(cluster.plane, says), rewards=(reward,))
        config = episode_config(
            model,
            run={"num_steps": 1},
            data={"sources": [{"task": "multiplication", "environment": "calculator"}], "max_prompt_tokens": 500},
            reward={"num_processes": 1},
            grpo={"group_size": 16, "groups_per_step": 2, "max_staleness": 0},
        )
        await cluster.run_to_end(config | {"environments": [{"name": "calculator"}]})
        groups = await cluster.groups()
    finally:
        await reward.close()
    rewards = {}
    for rollout in [rollout for group in groups for rollout in group.rollouts]:
        assert rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and not rollout.score.verifier_scores
        parts = {part.name: part.value for part in rollout.score.parts}
        assert parts.keys() == {"verifiable", "environment"} and parts["environment"] == rollout.score.reward
        called = bool(rollout.episode.metrics["right_call"])
        rewards[called, bool(rollout.episode.metrics["solved"])] = rollout.score.reward
        assert len(rollout.episode.turns) == 1 + called and rollout.episode.stop_reason == "done"
    assert rewards == {(False, False): 0.0, (True, False): 0.2, (True, True): 1.0}
