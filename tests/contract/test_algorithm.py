"""The coordinator's part of the algorithm over real gRPC, with workers that follow a script."""

import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import learner_pb2, reward_pb2
from tests.house import House, kinds
from tests.scripted import ScriptedGenerator, ScriptedReward, arithmetic_config


def rows(house: House) -> list[dict[str, float]]:
    """The metrics of each step."""
    return [json.loads(line) for line in next(house.data_dir.glob("*/metrics.jsonl")).read_text().splitlines()]


def query(house: House, text: str) -> list[Any]:
    """What the newest run's ledger says."""
    with sqlite3.connect(next(house.data_dir.glob("*/ledger.sqlite"))) as connection:
        return connection.execute(text).fetchall()


def rollouts(house: House) -> list[learner_pb2.TrainRollout]:
    """All that the learner was given, in order."""
    return [m.rollout for batch in house.learner.batches for m in batch if m.HasField("rollout")]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_active_sampling_fills_each_step_and_keeps_the_bound_of_staleness(
    house: House, model: Path, max_staleness: int
) -> None:
    house.learner.step_s = 0.02
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05), ScriptedGenerator(house.plane, delay_s=0.02))
    grpo = {"max_staleness": max_staleness, "group_size": 2, "active_sampling": True, "max_refills": 3}
    await house.start(arithmetic_config(model, grpo=grpo, run={"num_steps": 12}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    groups = await house.groups()
    trained = [group for group in groups if group.state == "TRAINED"]
    worst = max(group.staleness for group in trained)
    assert worst <= max_staleness, f"staleness {worst} for a bound of {max_staleness}"
    refills = [row["batch/refills"] for row in rows(house)]
    for step, refilled in enumerate(refills, start=1):
        num_trained = sum(group.train_step == step for group in trained)
        assert num_trained == 4 or refilled == 12, f"step {step} trained on {num_trained} groups after {refilled} more"
    # With groups of two about half have no signal.
    assert sum(refills) > 12, f"{sum(refills)} groups were sampled besides, in 12 steps"
    assert {group.state for group in groups} == {"TRAINED", "DROPPED"}
    assert "step_skipped" not in kinds(events)


async def test_active_sampling_gives_up_at_its_cap(house: House, model: Path) -> None:
    reward = ScriptedReward()
    reward.constant = 1.0
    await house.add_all(ScriptedGenerator(house.plane), rewards=(reward,))
    grpo = {"active_sampling": True, "max_refills": 2, "max_skipped_steps": 1, "max_staleness": 0}
    await house.start(arithmetic_config(model, grpo=grpo))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and "12 no_signal" in run.message, run.message
    assert len(await house.groups()) == 12, "4 groups and twice 4 more"


async def test_a_draining_run_fills_the_step_that_it_is_in(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    grpo = {"group_size": 2, "active_sampling": True, "max_refills": 5, "max_staleness": 1}
    await house.start(arithmetic_config(model, grpo=grpo, run={"num_steps": 60}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_DRAIN), timeout=10)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    assert 3 <= run.policy_version < 60, run.policy_version
    steps = Counter(group.train_step for group in await house.groups() if group.state == "TRAINED")
    assert set(steps.values()) == {4}, f"groups by step: {steps}"


class LenientReward(ScriptedReward):
    """Finds every completion right of each prompt with an even number."""

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        first = await anext(aiter(request_iterator))
        is_easy = int(first.prompt.prompt_id.rpartition(":")[2]) % 2 == 0
        async for response in super().ScoreGroup(request_iterator, context):
            response.score.reward = response.score.verifier_scores[0].value = (
                1.0 if is_easy else float(response.score.sample_index % 2)
            )
            yield response


async def test_what_is_learned_is_not_asked_again_across_a_resume(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.01), rewards=(LenientReward(),))
    config = arithmetic_config(
        model,
        grpo={"easy_rate": 1.0, "max_staleness": 0},
        run={"num_steps": 7},
        data={"sources": [{"task": "arithmetic", "task_size": 10}]},
    )
    await house.start(config, run_id="easy")
    # Two steps: the first pass over ten prompts is nearly through, what is easy of it excluded.
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_NOW), timeout=10)
    await house.end()
    await house.start({}, run_id="easy", resume=True)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    asked = Counter(group.prompt_id for group in await house.groups() if group.state != "ISSUED")
    easy = {name: count for name, count in asked.items() if int(name.rpartition(":")[2]) % 2 == 0}
    assert set(easy.values()) == {1}, f"easy prompts were asked {easy} times"
    assert sum(asked.values()) == 28 and len(asked) == 10, f"asked: {asked}"
    assert rows(house)[-1]["batch/no_resampled_prompts"] == 5


async def test_a_run_that_has_learned_everything_ends_with_the_reason(house: House, model: Path) -> None:
    reward = ScriptedReward()
    reward.constant = 1.0
    await house.add_all(ScriptedGenerator(house.plane), rewards=(reward,))
    config = arithmetic_config(
        model,
        grpo={"easy_rate": 1.0, "max_staleness": 0, "keep_zero_signal": True},
        run={"num_steps": 9},
        data={"sources": [{"task": "arithmetic", "task_size": 10}]},
    )
    await house.start(config)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and "grpo.easy_rate" in run.message, run.message


async def test_remax_compares_with_a_greedy_completion_that_is_sampled_besides(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane)
    await house.add_all(generator)
    await house.start(arithmetic_config(model, advantage={"baseline": "greedy", "scale": "none"}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    greedy = [request for request in generator.requests if request.sampling.temperature == 0]
    sampled = [request for request in generator.requests if request.sampling.temperature == 1]
    assert len(greedy) == len(sampled) and {len(request.seeds) for request in greedy} == {1}
    assert not {s for request in greedy for s in request.seeds} & {s for request in sampled for s in request.seeds}
    trained = query(
        house,
        "SELECT reward, greedy_reward, advantage FROM completions JOIN groups USING (order_number)"
        " WHERE state = 'TRAINED'",
    )
    assert len(trained) >= 5 * 4, f"{len(trained)} completions were trained on"
    assert all(advantage == reward - baseline for reward, baseline, advantage in trained)
    assert {baseline for _, baseline, _ in trained} == {0.0, 1.0}


async def test_kl_in_the_reward_is_taken_from_each_token_on_and_its_weight_adapts(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    kl = {"coef": 0.1, "place": "reward", "estimator": "k1", "target": 0.01, "horizon": 100}
    await house.start(arithmetic_config(model, kl=kl, advantage={"scale": "none"}, run={"num_steps": 4}), run_id="kl")
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    figures = rows(house)
    coefs = [row["objective/reward_kl_coef"] for row in figures]
    assert coefs[0] == 0.1 and coefs == sorted(set(coefs)), f"KL is above its target, so its weight grows: {coefs}"
    (saved,) = query(house, "SELECT kl_coef FROM progress")[0]
    assert saved > coefs[-1], "the next step's weight is in the ledger"
    num_first = sum(message.HasField("rollout") for message in house.learner.batches[0])
    for rollout in rollouts(house)[:num_first]:
        num_tokens = len(rollout.completion.token_ids) // 4
        if num_tokens == 1:
            continue
        # The engine says -1 of each token and the reference -1.5: 0.05 is taken at each, from there on.
        values = np.frombuffer(rollout.token_advantages, "<f4")
        assert np.allclose(np.diff(values), 0.05), values
    scores = [rollout.reward for rollout in rollouts(house)]
    assert set(scores) == {0.0, 1.0}, "rewards themselves are as the verifiers gave them"


async def test_running_rewards_are_those_of_the_run_as_it_is_after_a_resume(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.01))
    running = {"baseline": "running_mean", "scale": "running_std"}
    config = arithmetic_config(model, advantage=running, grpo={"max_staleness": 0}, run={"num_steps": 6})
    await house.start(config, run_id="running")
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_NOW), timeout=10)
    await house.end()
    await house.start({}, run_id="running", resume=True)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    seen: list[float] = []
    for step, figures in enumerate(rows(house), start=1):
        trained = query(
            house,
            "SELECT reward, advantage FROM completions JOIN groups USING (order_number)"
            f" WHERE train_step = {step} AND reward IS NOT NULL",
        )
        seen += [reward for reward, _ in trained]
        mean, std = np.mean(seen), np.std(seen, ddof=1)
        assert figures["objective/running_reward_mean"] == pytest.approx(mean), f"step {step}, {len(seen)} rewards"
        assert figures["objective/running_reward_std"] == pytest.approx(std), f"step {step}, {len(seen)} rewards"
        assert np.allclose([advantage for _, advantage in trained], [(r - mean) / (std + 1e-6) for r, _ in trained])
    count, saved = query(house, "SELECT reward_count, reward_mean FROM progress")[0]
    assert (count, saved) == (len(seen), pytest.approx(np.mean(seen)))


async def test_kl_of_whole_completions_is_taken_from_the_reward_that_is_compared(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    kl = {"coef": 0.1, "place": "reward", "estimator": "k1", "reward_level": "completion"}
    await house.start(arithmetic_config(model, kl=kl, advantage={"scale": "none"}, run={"num_steps": 1}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    groups: list[list[learner_pb2.TrainRollout]] = []
    for message in house.learner.batches[0]:
        if message.HasField("group"):
            groups.append([])
        elif message.HasField("rollout"):
            groups[-1].append(message.rollout)
    for group in groups:
        penalized = [r.reward - 0.1 * 0.5 * (len(r.completion.token_ids) // 4) for r in group]
        wanted = np.array(penalized) - np.mean(penalized)
        assert np.allclose([r.advantage for r in group], wanted), f"{[r.advantage for r in group]}, wanted {wanted}"
