"""One bad generator costs itself: it is left out of a publish at once, tried again with pauses, then quarantined."""

from pathlib import Path

import pytest

from services.coordinator.workers import lost_work
from services.coordinator.workers import member as member_module
from services.coordinator.workers.weights import weight_broadcast
from shoal.errors import Internal, Unavailable
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.waiting import PATIENCE_S, eventually

READY_TIMEOUT_S = 4.0
"""Costs a test as much with a laggard; a busy machine must not keep the others as long."""


async def test_one_laggard_among_eight_costs_the_seven_others_one_epoch_and_no_broadcast(
    cluster: Cluster, model: Path
) -> None:
    generators = [ScriptedGenerator(cluster.plane, holds_from=4) for _ in range(8)]
    await cluster.add_all(*generators)
    weights = {"ready_timeout_s": READY_TIMEOUT_S, "timeout_s": 60}
    await cluster.start(arithmetic_config(model, run={"num_steps": 2}, weights=weights))
    await cluster.until("step")
    num_created, num_broadcast = len(cluster.learner.created), len(cluster.learner.broadcast)
    generators[3].may_be_ready.clear()
    for generator in generators:
        generator.may_sample.set()
    events = await cluster.until("publish", policy_version=2)
    created, broadcast = cluster.learner.created[num_created:], cluster.learner.broadcast[num_broadcast:]
    (failed,) = of_kind(events, "publish_failed")
    assert failed.attributes["worker_id"] == "generator-3" and "ready_timeout_s" in failed.message, failed
    publish = events[-1].attributes
    assert len(publish["generators"]) == 7, publish
    assert (len(created), broadcast) == (1, created), f"epochs {created}, broadcasts {broadcast}"
    assert publish["epoch"] == failed.attributes["epoch"] + 1
    least_s, duration_s = READY_TIMEOUT_S, publish["duration_s"]
    assert least_s < duration_s < least_s + PATIENCE_S / 2, f"published after {duration_s:.1f} s"
    await cluster.finish(2)


async def test_a_laggard_that_gets_ready_again_is_caught_up_alone(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "FIRST_PAUSE_S", 0.2)
    generators = [ScriptedGenerator(cluster.plane) for _ in range(2)]
    cluster.learner.step_s = 0.1
    await cluster.add_all(*generators)
    weights = {"ready_timeout_s": 2.0, "max_failed_loads": 100}
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}, weights=weights))
    await cluster.until("step")
    generators[1].may_be_ready.clear()
    failed = (await cluster.until("publish_failed", worker_id="generator-1"))[-1]
    assert "tried again alone" in failed.message, failed
    generators[1].may_be_ready.set()
    alone = f"generator {failed.attributes['address']}"
    events = await cluster.until(
        lambda e: e.kind == "publish" and e.sequence > failed.sequence and list(e.attributes["generators"]) == [alone]
    )
    await cluster.until(
        lambda e: e.kind == "publish" and e.sequence > events[-1].sequence and len(e.attributes["generators"]) == 2
    )


async def test_a_generator_that_fails_every_load_is_quarantined_until_it_registers_again(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "FIRST_PAUSE_S", 0.1)
    bad = ScriptedGenerator(cluster.plane)
    bad.corrupt = True
    cluster.learner.step_s = 0.05
    await cluster.add_all(ScriptedGenerator(cluster.plane), bad)
    weights = {"max_failed_loads": 3}
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}, weights=weights))
    events = await cluster.until("worker_quarantined")
    failed = of_kind(events, "publish_failed")
    assert [event.attributes["num_failures"] for event in failed] == [1, 2, 3], [event.message for event in failed]
    assert {event.attributes["reason"] for event in failed} == {"WEIGHTS_CORRUPT"}
    workers = (await cluster.stub.ListWorkers(pb.ListWorkersRequest(), timeout=60)).workers
    shown = {worker.worker_id: worker.message for worker in workers}["generator-1"]
    assert shown.startswith("quarantined, since 3 loads "), shown
    version = cluster.plane.policy_version
    await eventually(lambda: cluster.plane.policy_version >= version + 5, "five more steps")
    assert (bad.num_loads, bad.num_completions) == (3, 0), "a quarantined generator gets broadcasts"
    repaired = ScriptedGenerator(cluster.plane)
    await cluster.add(repaired, "repaired")
    await eventually(lambda: repaired.num_completions > 0, "completions of the generator that registered again")


async def test_a_stalled_generator_is_left_out_of_a_join_before_the_deadline(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.coordinator.workers.member.STATUS_TIMEOUT_S", 2.0)
    stalled = ScriptedGenerator(cluster.plane)
    stalled.stalls_at_join = True
    await cluster.add_all(ScriptedGenerator(cluster.plane), stalled)
    config = arithmetic_config(model, run={"num_steps": 2}, weights={"ready_timeout_s": 2.0, "timeout_s": 300})
    _, events = await cluster.run_to_end(config)
    assert [event.attributes["worker_id"] for event in of_kind(events, "publish_failed")] == ["generator-1"]
    assert "worker_out_of_reach" in kinds(events), kinds(events)


async def test_a_generator_that_hangs_in_a_load_but_answers_is_left_out_before_the_deadline(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(weight_broadcast, "STATUS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(weight_broadcast, "_GRACE_S", 0.5)
    hanging = ScriptedGenerator(cluster.plane)
    await cluster.add_all(ScriptedGenerator(cluster.plane), hanging)
    weights = {"ready_timeout_s": 2.0, "timeout_s": 3600}
    await cluster.start(arithmetic_config(model, run={"num_steps": 8}, weights=weights))
    await cluster.until("step")
    hanging.may_load.clear()
    await cluster.until("publish_failed")
    hanging.may_load.set()  # Each further failure would double the time that the next load may take.
    _, events = await cluster.finish()
    assert {event.attributes["worker_id"] for event in of_kind(events, "publish_failed")} == {"generator-1"}
    within_s = cluster.learner.broadcast_within_s
    assert within_s[0] == 3600 > within_s[1], f"the second broadcast is not bounded by the first: {within_s}"


async def test_an_error_of_one_request_costs_its_group_and_no_generator(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.05)
    generators = [ScriptedGenerator(cluster.plane) for _ in range(2)]
    for generator in generators:
        generator.errors[5] = Internal("vLLM failed to sample: KeyError", reason="ENGINE_FAILED")
    await cluster.add_all(*generators)
    _, events = await cluster.run_to_end(
        arithmetic_config(model, run={"num_steps": 3}, coordinator={"max_group_losses": 3}), step=3
    )
    assert not {"worker_lost", "worker_out_of_reach"} & set(kinds(events)), kinds(events)
    (dropped,) = of_kind(events, "group_dropped")
    assert (dropped.attributes["order_number"], dropped.attributes["reason"]) == (5, "lost"), dropped
    tries = [r for generator in generators for r in generator.requests if r.request_id.split("/")[2] == "5"]
    assert len(tries) == 3 and len(of_kind(events, "group_reissued")) == 2, [r.request_id for r in tries]
    assert sorted(len(request.seeds) for request in tries) == [2, 3, 4], "completions that arrived are sampled again"


async def test_a_prompt_that_kills_generators_is_dropped_before_it_has_killed_all(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.05)
    generators = [ScriptedGenerator(cluster.plane) for _ in range(3)]
    for generator in generators:
        generator.killing_group = 6
    await cluster.add_all(*generators)
    _, events = await cluster.run_to_end(
        arithmetic_config(model, run={"num_steps": 4}, coordinator={"max_group_losses": 2}), step=4
    )
    (dropped,) = of_kind(events, "group_dropped")
    assert (dropped.attributes["order_number"], dropped.attributes["reason"]) == (6, "lost"), dropped
    killed = [generator for generator in generators if "6" in {r.request_id.split("/")[2] for r in generator.requests}]
    assert len(killed) == 2, f"{len(killed)} generators were killed"


async def test_a_generator_with_one_broken_call_serves_again_as_long_as_its_lease_lasts(
    cluster: Cluster, model: Path
) -> None:
    generator = ScriptedGenerator(cluster.plane)
    generator.errors[2] = Unavailable("the connection was reset")
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, run={"num_steps": 3}))
    broken = (await cluster.until("worker_out_of_reach"))[-1]
    assert broken.attributes["worker_id"] == "generator-0" and "reset" in broken.message, broken
    generator.errors.clear()
    _, events = await cluster.finish(3)
    assert "worker_lost" not in kinds(events), kinds(events)
    assert [event.attributes["order_number"] for event in of_kind(events, "group_reissued")] == [2], kinds(events)
    assert not of_kind(events, "group_dropped"), kinds(events)


async def test_time_in_a_queue_does_not_count_against_the_deadline_of_a_group(cluster: Cluster, model: Path) -> None:
    """Sixteen groups, one at a time: the last one waits longer than its deadline."""
    generator = ScriptedGenerator(cluster.plane, delay_s=0.15)
    await cluster.add_all(generator)
    sections = {"generator": {"max_num_seqs": 1}, "coordinator": {"sampling_timeout_s": 4.0}}
    grpo = {"max_staleness": 3}
    _, events = await cluster.run_to_end(arithmetic_config(model, run={"num_steps": 4}, grpo=grpo, **sections), step=4)
    assert not {"group_reissued", "group_dropped"} & set(kinds(events)), kinds(events)


async def test_a_generator_that_begins_no_group_is_loaded_again_and_the_group_goes_on_elsewhere(
    cluster: Cluster, model: Path
) -> None:
    stuck, other = ScriptedGenerator(cluster.plane), ScriptedGenerator(cluster.plane)
    stuck.may_begin.clear()
    await cluster.add_all(stuck, other)
    sections = {"grpo": {"max_staleness": 0}, "coordinator": {"sampling_timeout_s": 2.0}}
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}, **sections))
    # The machine may keep groups of the other one longer than that, too.
    reissued = (await cluster.until(lambda e: e.kind == "group_reissued" and "sent no token" in e.message))[-1]
    stuck.may_begin.set()
    await cluster.until(lambda event: event.kind == "step" and event.sequence > reissued.sequence)
    await eventually(lambda: stuck.num_loads >= 2, "a proof that its engine works")
