"""Runs that are resumed with changes of their configuration."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from shoal.errors import InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, of_kind
from tests.support.scripted_workers import HELD_OUT, ScriptedGenerator, arithmetic_config


async def resume(cluster: Cluster, run_id: str, changes: dict[str, Any]) -> pb.Run:
    request = pb.StartRunRequest(run_id=run_id, resume=True, config=json_format.ParseDict(changes, Struct()))
    return (await cluster.stub.StartRun(request, timeout=60)).run


async def finish_two_steps(cluster: Cluster, model: Path, **sections: dict[str, Any]) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01))
    await cluster.run_to_end(arithmetic_config(model, run={"num_steps": 2}, **sections), run_id="short")


async def test_a_finished_run_is_extended_and_skips_or_repeats_no_group(cluster: Cluster, model: Path) -> None:
    await finish_two_steps(cluster, model, evaluation=HELD_OUT, learner={"lr_scheduler": "linear"})
    run = await resume(cluster, "short", {"run": {"num_steps": 5}, "checkpoint": {"every_steps": 1}})
    assert run.num_steps == 5
    run, events = await cluster.finish(5)
    assert run.num_steps == 5
    await cluster.check_every_group_was_used_once(5)
    evaluated = [event.attributes["policy_version"] for event in events if event.kind == "evaluation"]
    exported = [event.attributes["policy_version"] for event in events if event.kind == "exported"]
    assert evaluated == [0, 2, 5] and exported == [2, 5], (evaluated, exported)
    (changed,) = of_kind(events, "config_changed")
    assert "checkpoint.every_steps: 50 -> 1" in changed.message and "run.num_steps: 2 -> 5" in changed.message, changed
    assert list(changed.attributes["fields"]) == ["checkpoint.every_steps", "run.num_steps"]
    assert [event for event in events if event.kind == "notice" and "linear follows the length" in event.message]
    kept = json.loads((cluster.data_dir / "short" / "config.json").read_text())
    assert (kept["run"]["num_steps"], kept["checkpoint"]["every_steps"]) == (5, 1)


async def test_a_damaged_ledger_is_replaced_by_that_of_the_checkpoint_and_the_caller_sees_the_resume(
    cluster: Cluster, model: Path
) -> None:
    await finish_two_steps(cluster, model)
    os.truncate(cluster.data_dir / "short" / "ledger.sqlite", 1000)
    assert (await cluster.stub.GetRun(pb.GetRunRequest(run_id="short"), timeout=60)).run.policy_version == 2
    run = await resume(cluster, "short", {"run": {"num_steps": 4}})
    assert run.num_steps == 4
    await cluster.finish(4)
    await cluster.check_every_group_was_used_once(4)


async def test_a_stopped_run_ends_at_its_present_step_with_an_evaluation_and_its_model(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    sections = {"run": {"num_steps": 40}, "evaluation": HELD_OUT | {"on_start": False}}
    await cluster.start(arithmetic_config(model, **sections), run_id="enough")
    await cluster.until("step", step=3)
    await cluster.stop()
    stopped, _ = await cluster.end()
    await resume(cluster, "enough", {"run": {"num_steps": stopped.policy_version}})
    _, events = await cluster.finish(stopped.policy_version)
    last = [event.kind for event in events if event.kind in ("evaluation", "exported")]
    assert last == ["evaluation", "exported"], last


async def test_changes_that_a_resumed_run_cannot_take_are_refused_and_change_nothing(
    cluster: Cluster, model: Path
) -> None:
    await finish_two_steps(cluster, model)
    folder = cluster.data_dir / "short"
    before = {name: (folder / name).read_text() for name in ("run.json", "config.json", "events.jsonl")}
    for changes, field in (
        ({"run": {"seed": 1}}, "run.seed"),
        ({"data": {"max_prompt_tokens": 100}}, "data.max_prompt_tokens"),
        ({"run": {"num_steps": 1}}, "run.num_steps"),
        ({"grpo": {"group_size": 0}}, "grpo.group_size"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await resume(cluster, "short", changes)
        assert [violation.field for violation in caught.value.violations] == [field], caught.value.message
    assert {name: (folder / name).read_text() for name in before} == before


async def test_a_resumed_run_trains_on_groups_of_the_new_size(cluster: Cluster, model: Path) -> None:
    await finish_two_steps(cluster, model)
    changes = {"run": {"num_steps": 4}, "grpo": {"group_size": 6, "groups_per_step": 3}, "kl": {"coef": 0.5}}
    await resume(cluster, "short", changes)
    await cluster.finish()
    sizes = {group.train_step: len(group.rollouts) for group in await cluster.groups() if group.state == "TRAINED"}
    assert sizes == {1: 4, 2: 4, 3: 6, 4: 6}, sizes


@pytest.mark.parametrize("damage", ["manifest", "snapshot"])
async def test_a_damaged_checkpoint_is_left_out_and_the_one_before_it_used(
    cluster: Cluster, model: Path, damage: str
) -> None:
    await finish_two_steps(cluster, model, checkpoint={"every_steps": 1})
    newest = cluster.data_dir / "short" / "checkpoints" / "step-00000002"
    damaged = newest / ("manifest.json" if damage == "manifest" else "ledger.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:-100])  # As a disk that lost its last write leaves it.
    await resume(cluster, "short", {"run": {"num_steps": 4}})
    run, events = await cluster.finish(4)
    assert run.last_checkpoint_id == "step-00000004", run
    (event,) = of_kind(events, "checkpoint_damaged")
    assert event.attributes["checkpoint_id"] == "step-00000002" and damaged.name in event.message, event.message
    (restored,) = of_kind(events, "restored")
    assert restored.attributes["policy_version"] == 1, restored
    written = [event.attributes["checkpoint_id"] for event in events if event.kind == "checkpoint"]
    assert written == [f"step-{step:08d}" for step in (1, 2, 2, 3, 4)], written
    await cluster.check_every_group_was_used_once(4)


async def test_reading_a_run_while_it_is_resumed_leaves_one_ledger(cluster: Cluster, model: Path) -> None:
    await finish_two_steps(cluster, model)

    async def read_forever() -> None:
        while True:
            await cluster.stub.GetRun(pb.GetRunRequest(run_id="short"), timeout=60)

    reading = asyncio.create_task(read_forever())
    for num_steps in (3, 4, 5):
        await resume(cluster, "short", {"run": {"num_steps": num_steps}})
        await cluster.finish(num_steps)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled(), f"reading ended: {reading}"
    # A reader that closes the ledger last may leave its log, which is part of it.
    log = {"ledger.sqlite-wal", "ledger.sqlite-shm"}
    left = {path.name for path in (cluster.data_dir / "short").glob("ledger*")} - log
    assert left == {"ledger.sqlite", *(f"ledger.attempt-{attempt}.sqlite" for attempt in range(3))}, left
    await cluster.check_every_group_was_used_once(5)


async def test_a_run_whose_folder_is_lost_goes_on_from_its_mirror(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    cluster.learner.checkpoints = cluster.data_dir / "short" / "checkpoints"
    await finish_two_steps(cluster, model, checkpoint={"every_steps": 1, "mirror": str(mirror)})
    (cluster.data_dir / "short").rename(tmp_path / "lost")
    changes = {"run": {"num_steps": 4}, "checkpoint": {"mirror": str(mirror)}}
    await resume(cluster, "short", changes)
    _, events = await cluster.finish(4)
    mirrored = [event.attributes["checkpoint_id"] for event in events if event.kind == "checkpoint_mirrored"]
    assert (mirrored[-1], "fetched" in {event.kind for event in events}) == ("step-00000004", True), mirrored
    await cluster.check_every_group_was_used_once(4)


async def test_a_run_whose_checkpoints_are_gone_or_damaged_goes_on_from_that_of_its_mirror(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    folder = cluster.data_dir / "short"
    cluster.learner.checkpoints = folder / "checkpoints"
    await finish_two_steps(cluster, model, checkpoint={"every_steps": 1, "mirror": str(tmp_path / "mirror")})
    shutil.rmtree(folder / "checkpoints")
    (text,) = folder.glob("segments/text-*")
    text.write_bytes(text.read_bytes()[:-1])
    await resume(cluster, "short", {"run": {"num_steps": 3}})
    await cluster.finish(3)
    for manifest in (folder / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    await resume(cluster, "short", {"run": {"num_steps": 4}})
    _, events = await cluster.finish(4)
    fetched = [event.attributes["checkpoint_id"] for event in events if event.kind == "fetched"]
    assert fetched == ["step-00000002", "step-00000003"], fetched
    (damaged,) = of_kind(events, "segment_damaged")
    assert damaged.attributes["taken_from"] == str(tmp_path / "mirror"), damaged.message
    await cluster.check_every_group_was_used_once(4)
