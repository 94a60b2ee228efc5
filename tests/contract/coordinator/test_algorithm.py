"""The coordinator's part of the algorithm over real gRPC, with scripted workers."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.store.rollouts import whole_ledger
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import learner_pb2, reward_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config


def query(cluster: Cluster, text: str) -> list[Any]:
    with closing(whole_ledger(next(cluster.data_dir.glob("*/ledger.sqlite")).parent)) as connection:
        return connection.execute(text).fetchall()


def rollouts(cluster: Cluster) -> list[learner_pb2.TrainRollout]:
    return [m.rollout for batch in cluster.learner.batches for m in batch if m.HasField("rollout")]


async def test_active_sampling_stops_at_its_cap(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(ScriptedReward(constant=1.0),))
    grpo = {"active_sampling": True, "max_refills": 2, "max_skipped_steps": 1, "max_staleness": 0}
    await cluster.start(arithmetic_config(model, grpo=grpo))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "12 no_signal" in run.message, run.message
    dropped = [group for group in await cluster.groups() if group.state == "DROPPED"]
    assert len(dropped) == 12, f"{len(dropped)} groups dropped, not 4 and twice 4 more"


async def test_a_draining_run_fills_the_step_that_it_is_in(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    grpo = {"group_size": 2, "active_sampling": True, "max_refills": 5, "max_staleness": 1}
    await cluster.start(arithmetic_config(model, grpo=grpo, run={"num_steps": 60}))
    await cluster.until("step", step=2)
    await cluster.stop(pb.STOP_MODE_DRAIN)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    assert 3 <= run.policy_version < 60, run.policy_version
    steps = Counter(group.train_step for group in await cluster.groups() if group.state == "TRAINED")
    assert set(steps.values()) == {4}, f"groups by step: {steps}"


class LenientReward(ScriptedReward):
    """Scores every completion of a prompt with an even number as correct."""

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


async def test_learned_prompts_are_not_issued_again_after_a_resume(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01), rewards=(LenientReward(),))
    config = arithmetic_config(
        model,
        grpo={"easy_rate": 1.0, "max_staleness": 0},
        run={"num_steps": 7},
        data={"sources": [{"task": "arithmetic", "task_size": 10}]},
    )
    await cluster.start(config, run_id="easy")
    # After two steps the first pass over ten prompts is nearly over, and its easy prompts are excluded.
    await cluster.until("step", step=2)
    await cluster.stop(pb.STOP_MODE_NOW)
    await cluster.end()
    await cluster.run_to_end({}, run_id="easy", resume=True)
    asked = Counter(group.prompt_id for group in await cluster.groups() if group.state != "ISSUED")
    easy = {name: count for name, count in asked.items() if int(name.rpartition(":")[2]) % 2 == 0}
    assert set(easy.values()) == {1}, f"easy prompts were asked {easy} times"
    assert sum(asked.values()) == 28 and len(asked) == 10, f"asked: {asked}"
    assert cluster.metrics()[-1]["batch/no_resampled_prompts"] == 5


async def test_a_trained_policy_whose_last_hundred_groups_are_all_right_finishes_the_run(
    cluster: Cluster, model: Path
) -> None:
    reward = ScriptedReward()
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(arithmetic_config(model, run={"num_steps": 900}), run_id="right")
    await cluster.until("step", step=2)
    reward.constant = 1.0
    run, events = await cluster.finish()
    assert 2 <= run.policy_version < 900, run
    [learned] = of_kind(events, "prompts_learned")
    assert learned.attributes["num_groups"] >= 100 and kinds(events).count("exported") == 1, learned


@pytest.mark.parametrize("keep_zero_signal", [True, False], ids=["in steps", "in skipped steps"])
async def test_a_run_that_has_learned_every_prompt_is_finished_with_an_export_and_stays_so(
    cluster: Cluster, model: Path, keep_zero_signal: bool
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(ScriptedReward(constant=1.0),))
    config = arithmetic_config(
        model,
        grpo={"easy_rate": 1.0, "max_staleness": 0, "keep_zero_signal": keep_zero_signal},
        run={"num_steps": 9},
        data={"sources": [{"task": "arithmetic", "task_size": 10}]},
    )
    run, events = await cluster.run_to_end(config, run_id="learned")
    assert 2 <= run.policy_version < 9 if keep_zero_signal else run.policy_version == 0, run
    assert run.last_checkpoint_id == f"step-{run.policy_version:08d}", run
    [learned] = of_kind(events, "prompts_learned")
    assert learned.attributes["num_prompts"] == 10 and kinds(events).count("exported") == 1, list(kinds(events))
    await cluster.run_to_end({}, run_id="learned", resume=True, step=run.policy_version)


async def test_remax_compares_with_an_additional_greedy_completion(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    await cluster.run_to_end(arithmetic_config(model, advantage={"baseline": "greedy", "scale": "none"}))
    greedy = [request for request in generator.requests if request.sampling.temperature == 0]
    sampled = [request for request in generator.requests if request.sampling.temperature == 1]
    assert len(greedy) == len(sampled) and {len(request.seeds) for request in greedy} == {1}
    assert not {s for request in greedy for s in request.seeds} & {s for request in sampled for s in request.seeds}
    trained = query(
        cluster,
        "SELECT reward, greedy_reward, advantage FROM completions JOIN groups USING (order_number)"
        " WHERE state = 'TRAINED'",
    )
    assert len(trained) >= 5 * 4, f"{len(trained)} completions were trained on"
    assert all(advantage == reward - baseline for reward, baseline, advantage in trained)
    assert {baseline for _, baseline, _ in trained} == {0.0, 1.0}


async def test_kl_in_the_reward_is_subtracted_from_each_token_on_and_its_coefficient_adapts(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    kl = {"coef": 0.1, "place": "reward", "estimator": "k1", "target": 0.01, "horizon": 100}
    await cluster.run_to_end(
        arithmetic_config(model, kl=kl, advantage={"scale": "none"}, run={"num_steps": 4}), run_id="kl"
    )
    coefs = [row["objective/reward_kl_coef"] for row in cluster.metrics()]
    assert coefs[0] == 0.1 and coefs == sorted(set(coefs)), f"KL is above its target, so its coefficient grows: {coefs}"
    (saved,) = query(cluster, "SELECT kl_coef FROM progress")[0]
    assert saved > coefs[-1], "the ledger holds the next step's coefficient"
    num_first = sum(message.HasField("rollout") for message in cluster.learner.batches[0])
    for rollout in rollouts(cluster)[:num_first]:
        num_tokens = len(rollout.completion.token_ids) // 4
        if num_tokens == 1:
            continue
        # Engine -1, reference -1.5: each token subtracts 0.05 from itself and from every earlier one.
        values = np.frombuffer(rollout.token_advantages, "<f4")
        assert np.allclose(np.diff(values), 0.05), values
    scores = [rollout.reward for rollout in rollouts(cluster)]
    assert set(scores) == {0.0, 1.0}, "the rewards themselves are those of the verifiers"


async def test_running_rewards_cover_the_final_lineage_after_a_resume(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01))
    running = {"baseline": "running_mean", "scale": "running_std"}
    config = arithmetic_config(model, advantage=running, grpo={"max_staleness": 0}, run={"num_steps": 6})
    await cluster.start(config, run_id="running")
    await cluster.until("step", step=2)
    await cluster.stop(pb.STOP_MODE_NOW)
    await cluster.end()
    await cluster.run_to_end({}, run_id="running", resume=True)
    seen: list[float] = []
    for step, metrics in enumerate(cluster.metrics(), start=1):
        trained = query(
            cluster,
            "SELECT reward, advantage FROM completions JOIN groups USING (order_number)"
            f" WHERE train_step = {step} AND reward IS NOT NULL",
        )
        seen += [reward for reward, _ in trained]
        mean, std = np.mean(seen), np.std(seen, ddof=1)
        assert metrics["objective/running_reward_mean"] == pytest.approx(mean), f"step {step}, {len(seen)} rewards"
        assert metrics["objective/running_reward_std"] == pytest.approx(std), f"step {step}, {len(seen)} rewards"
        assert np.allclose([advantage for _, advantage in trained], [(r - mean) / (std + 1e-6) for r, _ in trained])
    count, saved = query(cluster, "SELECT reward_count, reward_mean FROM progress")[0]
    assert (count, saved) == (len(seen), pytest.approx(np.mean(seen)))


async def test_kl_of_whole_completions_is_subtracted_before_rewards_are_compared(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    kl = {"coef": 0.1, "place": "reward", "estimator": "k1", "reward_level": "completion"}
    await cluster.run_to_end(arithmetic_config(model, kl=kl, advantage={"scale": "none"}, run={"num_steps": 1}))
    groups: list[list[learner_pb2.TrainRollout]] = []
    for message in cluster.learner.batches[0]:
        if message.HasField("group"):
            groups.append([])
        elif message.HasField("rollout"):
            groups[-1].append(message.rollout)
    for group in groups:
        penalized = [r.reward - 0.1 * 0.5 * (len(r.completion.token_ids) // 4) for r in group]
        wanted = np.array(penalized) - np.mean(penalized)
        assert np.allclose([r.advantage for r in group], wanted), f"{[r.advantage for r in group]}, wanted {wanted}"
