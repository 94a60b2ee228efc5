"""Publishes that wait until nothing is sampled, over real gRPC."""

import asyncio
from pathlib import Path

from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.waiting import eventually

NO_UPDATES_IN_FLIGHT = {"inflight_updates": False}


async def test_updates_in_flight_reach_a_generator_that_samples(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane, holds_from=4)
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, run={"num_steps": 4}))
    await eventually(lambda: generator.num_loads == 2, "the publish of the first step")
    assert generator.sampling_at_loads[-1] == 4, generator.sampling_at_loads
    generator.may_sample.set()
    await cluster.finish(4)


async def test_without_updates_in_flight_no_generator_that_samples_loads(cluster: Cluster, model: Path) -> None:
    generators = [ScriptedGenerator(cluster.plane, delay_s=0.05) for _ in range(2)]
    await cluster.add_all(*generators)
    config = arithmetic_config(model, run={"num_steps": 8}, grpo={"max_staleness": 3}, weights=NO_UPDATES_IN_FLIGHT)
    await cluster.run_to_end(config, step=8)
    sampling = [num for generator in generators for num in generator.sampling_at_loads]
    assert not any(sampling), f"completions being sampled when each load began: {sampling}"


async def test_a_pause_in_a_publish_holds_the_generators_that_have_the_weights_already(
    cluster: Cluster, model: Path
) -> None:
    """Two steps are in flight, and the second generator takes long to load the weights of the first one."""
    generators = [ScriptedGenerator(cluster.plane, holds_from=4) for _ in range(2)]
    await cluster.add_all(*generators)
    await cluster.start(arithmetic_config(model, run={"num_steps": 4}, grpo={"max_staleness": 1}))
    await cluster.until("publish")
    generators[1].may_load.clear()
    await eventually(lambda: [generator.num_loads for generator in generators] == [2, 2], "both load the next version")
    await eventually(lambda: generators[0].version.policy_version == 1, "the first one has it")  # type: ignore[union-attr]
    num_completions = sum(generator.num_completions for generator in generators)
    pausing = asyncio.ensure_future(cluster.pause())
    await eventually(lambda: all(generator.is_paused for generator in generators), "both are paused")
    assert not pausing.done(), "the publish has ended"
    for generator in generators:
        generator.may_sample.set()
    generators[1].may_load.set()
    await pausing
    assert sum(generator.num_completions for generator in generators) == num_completions, "it sampled in a pause"
    await cluster.resume()
    await cluster.finish(4)


async def hold_first_publish(cluster: Cluster, model: Path) -> ScriptedGenerator:
    """Starts a run, and returns its generator once step 1 is taken while groups of step 2 do not end."""
    generator = ScriptedGenerator(cluster.plane, holds_from=4)
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, run={"num_steps": 4}, weights=NO_UPDATES_IN_FLIGHT))
    await eventually(lambda: cluster.plane.policy_version == 1, "the first step")
    await eventually(lambda: generator.num_sampling == 4, "the groups of the second step")
    assert generator.num_loads == 1, f"{generator.num_loads} loads, though {generator.num_sampling} are being sampled"
    return generator


async def test_a_publish_that_waits_obeys_pause_and_checkpoint_and_continues(cluster: Cluster, model: Path) -> None:
    generator = await hold_first_publish(cluster, model)
    await cluster.pause()
    saved = await cluster.save_checkpoint()
    assert saved.checkpoint_id == "step-00000001", saved
    generator.may_sample.set()
    await cluster.resume()
    _, events = await cluster.finish(4)
    assert not any(generator.sampling_at_loads), generator.sampling_at_loads
    told = [event.kind for event in events if event.kind in ("step", "checkpoint")]
    # A restore from that checkpoint would not repeat the step, and it would be in no metrics.
    assert told[:2] == ["step", "checkpoint"] and told.count("step") == 4, told


async def test_a_stop_does_not_wait_for_a_publish_that_waits(cluster: Cluster, model: Path) -> None:
    await hold_first_publish(cluster, model)
    await cluster.stop(pb.STOP_MODE_NOW)
    run, events = await cluster.end()
    assert (run.state, run.last_checkpoint_id) == (pb.RUN_STATE_STOPPED, "step-00000001"), run
    assert "step" in kinds(events), "the step that was taken is not reported"


async def test_a_generator_that_dies_while_a_publish_waits_for_it_does_not_block_it(
    cluster: Cluster, model: Path
) -> None:
    survivor, victim = ScriptedGenerator(cluster.plane), ScriptedGenerator(cluster.plane, holds_from=4)
    await cluster.add_all(survivor)
    await cluster.add(victim, "victim")
    await cluster.start(arithmetic_config(model, run={"num_steps": 4}, weights=NO_UPDATES_IN_FLIGHT))
    await eventually(lambda: cluster.plane.policy_version == 1 and victim.num_sampling > 0, "a publish that waits")
    await cluster.kill("victim")
    _, events = await cluster.finish(4)
    assert "group_reissued" in kinds(events), kinds(events)
    assert not any(survivor.sampling_at_loads), survivor.sampling_at_loads


async def test_a_group_that_exceeds_its_deadline_does_not_hold_a_publish_for_ever(
    cluster: Cluster, model: Path
) -> None:
    generator = ScriptedGenerator(cluster.plane, holds_from=4)
    await cluster.add_all(generator)
    deadline = {"sampling_timeout_s": 1.0}
    config = arithmetic_config(model, run={"num_steps": 2}, weights=NO_UPDATES_IN_FLIGHT, coordinator=deadline)
    await cluster.start(config)
    await eventually(lambda: generator.num_loads >= 2, "the publish of the first step")
    generator.may_sample.set()
    _, events = await cluster.finish(2)
    assert "group_reissued" in kinds(events), kinds(events)
