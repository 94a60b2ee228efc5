"""Steps that are not applied: what they do to the run, and what its ledger says of their groups."""

from collections import Counter
from pathlib import Path

from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.parsed_commands import parse_command
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config


async def drop_reasons(cluster: Cluster) -> Counter[str]:
    return Counter(group.drop_reason for group in await cluster.groups() if group.state == "DROPPED")


async def test_steps_without_a_signal_are_counted_and_do_not_end_the_run(cluster: Cluster, model: Path) -> None:
    reward = ScriptedReward(constant=1.0)
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01), rewards=(reward,))
    await cluster.start(arithmetic_config(model, run={"num_steps": 3}))
    events = await cluster.until("step_skipped", num_in_a_row=6)
    assert "4 no_signal" in events[-1].message, events[-1].message
    reward.constant = None
    await cluster.finish(3)
    assert set(await drop_reasons(cluster)) == {"no_signal"}, await drop_reasons(cluster)


async def test_a_run_without_a_signal_ends_by_default_and_says_what_its_groups_have_in_common(
    cluster: Cluster, model: Path
) -> None:
    reward = ScriptedReward(constant=0.0)
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(arithmetic_config(model))
    run, events = await cluster.end()
    num_skipped = kinds(events).count("step_skipped")
    assert run.state == pb.RUN_STATE_FAILED and 4 * num_skipped == 100, (num_skipped, run.message)
    assert f"{num_skipped} steps in a row" in run.message and "in 100 " in run.message
    look = run.message.partition("`")[2].partition(" --dropped")[0]
    assert parse_command(look)["run"] == run.run_id, run.message
    reward.constant = None
    await cluster.run_to_end({}, run_id=run.run_id, resume=True)


async def test_a_failed_verifier_gives_no_reward_of_zero(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(ScriptedReward(failing=True),))
    await cluster.start(arithmetic_config(model, reward={"max_failed_share": 1.0}, grpo={"max_skipped_steps": 3}))
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "grpo.max_skipped_steps" in run.message, run.message
    assert not cluster.learner.batches and kinds(events).count("step_skipped") == 3
    [skipped, *_] = of_kind(events, "step_skipped")
    unscored = skipped.attributes["unscored"]
    assert unscored["num_failed"] == unscored["num_completions"] > 0, skipped
    assert "gsm8k: " in skipped.message, skipped
    assert set(await drop_reasons(cluster)) == {"not_scored"}, await drop_reasons(cluster)


async def test_a_run_ends_once_every_prompt_was_asked_in_vain_and_goes_on_from_there(
    cluster: Cluster, model: Path
) -> None:
    reward = ScriptedReward(failing=True)
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    data = {"sources": [{"task": "arithmetic", "task_size": 13}]}
    config = arithmetic_config(model, reward={"max_failed_share": 1.0}, data=data, run={"num_steps": 2})
    await cluster.start(config, run_id="vain")
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "every prompt failed" in run.message, run.message
    assert "not_scored" in run.message and "gsm8k: " in run.message, run.message
    num_skipped = kinds(events).count("step_skipped")
    assert 4 <= num_skipped <= 7, f"{num_skipped}: 13 prompts are a pass of 4 steps, and a bit more than 2 at most"
    reward.failing = False
    await cluster.run_to_end({}, run_id="vain", resume=True, step=2)


async def test_three_steps_that_are_not_finite_end_the_run_with_the_reason(cluster: Cluster, model: Path) -> None:
    cluster.learner.refuse_steps = True
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model, grpo={"group_size": 2, "max_staleness": 0}))
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "not finite" in run.message, run.message
    assert kinds(events).count("step_skipped") >= 3, kinds(events)
    # Groups of two often have two equal rewards: they keep that reason, and the others have the step's.
    reasons = await drop_reasons(cluster)
    assert set(reasons) == {"no_signal", "skipped_step"} and reasons["skipped_step"] >= 3, reasons
