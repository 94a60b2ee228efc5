"""What a run that fails leaves behind: a checkpoint of its last step, where the learner can write one."""

from collections import Counter
from pathlib import Path

from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config


async def test_a_run_of_skipped_steps_fails_with_a_checkpoint_and_resumes_behind_them(
    cluster: Cluster, model: Path
) -> None:
    reward = ScriptedReward(constant=1.0)
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    grpo = {"max_skipped_steps": 2, "max_staleness": 0, "group_size": 8}
    await cluster.start(arithmetic_config(model, grpo=grpo, run={"num_steps": 2}), run_id="flat")
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and run.last_checkpoint_id == "step-00000000", run.message
    assert "resume from step-00000000" in run.message, run.message
    for num_used_up in (16, 24):
        if num_used_up == 24:
            reward.constant = None
        await cluster.start({}, run_id="flat", resume=True)
        run, events = await cluster.end()
        groups = await cluster.groups()
        assert [group.order_number for group in groups[:num_used_up]] == list(range(num_used_up)), len(groups)
    assert (run.state, run.policy_version) == (pb.RUN_STATE_FINISHED, 2), run.message
    assert kinds(events).count("checkpoint") == 3, kinds(events)
    states = Counter(group.state for group in groups[:16])
    assert states == {"DROPPED": 16}, f"skipped groups were asked again: {states}"


async def test_a_step_that_has_begun_is_in_the_checkpoint_of_a_run_that_fails_meanwhile(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all()
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add(generator, "generator-0")
    sections = {"run": {"num_steps": 40}, "coordinator": {"worker_timeout_s": 0.5}}
    await cluster.start(arithmetic_config(model, **sections), run_id="cut")
    await cluster.until("step", step=2)
    cluster.learner.step_s = 2.0
    cluster.learner.stepping.clear()
    await cluster.learner.stepping.wait()
    # The run fails 0.5 s after its only generator, in the middle of this step.
    cluster.registry.report_lost("generator-0", "it was ended")
    await cluster.kill("generator-0")
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and "no generator" in run.message, run.message
    assert run.policy_version == cluster.plane.policy_version > 2
    assert run.last_checkpoint_id == f"step-{run.policy_version:08d}", run.last_checkpoint_id
    rows = cluster.metrics("cut")
    assert [row["step"] for row in rows] == list(range(1, run.policy_version + 1))
    await cluster.add(ScriptedGenerator(cluster.plane), "generator-1")
    cluster.learner.step_s = 0.0
    await cluster.start({}, run_id="cut", resume=True)
    step = run.policy_version + 1
    events = await cluster.until("step", step=step)
    assert events[-1].attributes["step"] == step, events[-1]
