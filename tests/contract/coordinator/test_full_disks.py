"""Runs on disks that get full, read-only or lost, on real small file systems."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.coordinator.run import full_disk
from services.coordinator.store.events import read_events
from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "MAX_PAUSE_S", 0.2)
    monkeypatch.setattr(full_disk, "MIN_PAUSE_S", 0.1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "runs", "16m") as disk:
        yield disk


@pytest.fixture
async def small_cluster(disk: SmallDisk) -> AsyncIterator[Cluster]:
    async with Cluster.running(disk.folder) as cluster:
        await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
        yield cluster


async def start(cluster: Cluster, model: Path, *, num_steps: int = 12) -> None:
    config = arithmetic_config(model, run={"num_steps": num_steps}, checkpoint={"every_steps": 2})
    await cluster.start(config, run_id="full")


async def until_state(cluster: Cluster, state: "pb.RunState.ValueType") -> pb.Run:
    async def run() -> pb.Run | None:
        run = await cluster.run()
        return run if run.state == state else None

    found = await eventually(run, f"the run is {pb.RunState.Name(state)}")
    assert isinstance(found, pb.Run)
    return found


async def fill_under_a_run(cluster: Cluster, disk: SmallDisk, model: Path) -> None:
    """Starts a run, fills its disk after a checkpoint, and waits until the run is paused."""
    await start(cluster, model)
    await cluster.until("checkpoint")
    disk.fill()
    await until_state(cluster, pb.RUN_STATE_PAUSED)


async def check_lineage(cluster: Cluster, num_steps: int) -> None:
    """Checks that every step trained on groups of its own, in order."""
    groups = [group for group in await cluster.groups() if group.state == "TRAINED"]
    steps = [group.train_step for group in groups]
    assert steps == sorted(steps) and set(steps) == set(range(1, num_steps + 1)), steps
    lines = cluster.metrics("full")
    assert [line["step"] for line in lines] == list(range(1, num_steps + 1)), lines


async def test_a_run_pauses_while_its_disk_is_full_and_goes_on_by_itself(
    small_cluster: Cluster, disk: SmallDisk, model: Path
) -> None:
    await start(small_cluster, model)
    await small_cluster.until("checkpoint")
    disk.fill()
    paused = await until_state(small_cluster, pb.RUN_STATE_PAUSED)
    assert f"the disk of {disk.folder}/full" in paused.message and "free some space" in paused.message, paused.message
    shown = RunFolders(disk.folder).find("full")
    assert shown.state is RunState.PAUSED and "disk" in shown.message, shown
    disk.free()
    _, events = await small_cluster.finish(12, attempt=0)
    assert RunFolders(disk.folder).find("full").state is RunState.FINISHED
    await check_lineage(small_cluster, 12)
    stored = read_events(disk.folder / "full" / "events.jsonl")
    assert [event.sequence for event in stored] == [event.sequence for event in events], kinds(stored)


async def test_a_generator_that_joins_while_the_disk_is_full_takes_part_once_there_is_room(
    small_cluster: Cluster, disk: SmallDisk, model: Path
) -> None:
    await fill_under_a_run(small_cluster, disk, model)
    late = ScriptedGenerator(small_cluster.plane, delay_s=0.02)
    await small_cluster.add(late, "generator-late")
    await small_cluster.until(lambda event: event.kind == "worker_joined" and "generator-late" in str(event))
    disk.free()
    await small_cluster.finish(attempt=0)
    assert late.num_loads, "it never got weights"
    await check_lineage(small_cluster, 12)


async def test_a_person_who_pauses_a_run_that_waits_for_room_resumes_it_too(
    small_cluster: Cluster, disk: SmallDisk, model: Path
) -> None:
    await fill_under_a_run(small_cluster, disk, model)
    await small_cluster.pause()
    disk.free()
    assert small_cluster.runs.active("").commands  # It is still active.
    run = await small_cluster.save_checkpoint()
    assert (await small_cluster.run()).state == pb.RUN_STATE_PAUSED, run
    await small_cluster.resume()
    await small_cluster.finish()
    await check_lineage(small_cluster, 12)


async def test_a_run_that_is_stopped_on_a_full_disk_says_so_and_is_resumed(
    small_cluster: Cluster, disk: SmallDisk, model: Path
) -> None:
    await fill_under_a_run(small_cluster, disk, model)
    await small_cluster.stop(pb.STOP_MODE_NOW)
    run, _ = await small_cluster.end()
    says_why = run.state == pb.RUN_STATE_FAILED and "is full" in run.message and "--resume full" in run.message
    assert says_why or run.state == pb.RUN_STATE_STOPPED, run  # STOPPED where nothing is lost.
    disk.free()
    await small_cluster.run_to_end({}, run_id="full", resume=True, step=12)
    await check_lineage(small_cluster, 12)


@pytest.mark.parametrize("starts_on_a_full_disk", [False, True])
async def test_a_run_whose_coordinator_ends_on_a_full_disk_goes_on_once_it_is_started_and_there_is_room(
    small_cluster: Cluster, disk: SmallDisk, model: Path, starts_on_a_full_disk: bool
) -> None:
    await fill_under_a_run(small_cluster, disk, model)
    await small_cluster.runs.close(grace_s=PATIENCE_S)
    left = RunRecord.load_as_left(disk.folder / "full")
    assert not left.state.has_ended and left.state is not RunState.STOPPING, left
    if not starts_on_a_full_disk:
        disk.free()
    async with Cluster.running(disk.folder) as again:
        again.runs.take_up()
        await again.add_all(ScriptedGenerator(again.plane, delay_s=0.02))
        if starts_on_a_full_disk:
            paused = await until_state(again, pb.RUN_STATE_PAUSED)
            assert f"{disk.folder}/full" in paused.message, paused
            await again.until("state", state="PAUSED")
            disk.free()
        await again.finish(12, attempt=1)
        assert RunRecord.load_as_left(disk.folder / "full").attempt == 1
        await check_lineage(again, 12)


async def test_training_goes_on_without_checkpoints_while_their_disk_is_full(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    checkpoints = cluster.data_dir / "full" / "checkpoints"
    with small_disk(checkpoints, "4m") as disk:
        disk.fill()
        await start(cluster, model, num_steps=13)
        failures = await cluster.until("checkpoint_failed")
        assert str(checkpoints) in failures[-1].message, failures[-1]
        await cluster.until("step", step=7)
        disk.free()
        events = await cluster.until("checkpoint")
        assert sorted(path.name for path in checkpoints.iterdir()) == [events[-1].attributes["checkpoint_id"]]
        _, events = await cluster.finish(13)
    failed = [int(event.attributes["policy_version"]) for event in events if event.kind == "checkpoint_failed"]
    assert failed[:2] == [2, 3], failed


async def test_a_folder_that_becomes_read_only_ends_the_run_with_the_reason_and_a_resume_goes_on(
    small_cluster: Cluster, disk: SmallDisk, model: Path
) -> None:
    await start(small_cluster, model, num_steps=12)
    await small_cluster.until("checkpoint")
    with disk.read_only("full"):
        events = await small_cluster.until(lambda _: False)
    assert events[-1].attributes["state"] == "FAILED", events[-1]
    assert "full/run.json" in events[-1].message and "Read-only file system" in events[-1].message, events[-1]
    await small_cluster.run_to_end({}, run_id="full", resume=True, step=12)
    await check_lineage(small_cluster, 12)


async def test_a_run_whose_folder_is_deleted_ends_and_says_so(small_cluster: Cluster, model: Path) -> None:
    await start(small_cluster, model, num_steps=1000)
    await small_cluster.until("checkpoint")
    with contextlib.suppress(OSError):
        shutil.rmtree(small_cluster.data_dir / "full")
    events = await small_cluster.until(lambda _: False)
    assert events[-1].attributes["state"] == "FAILED", events[-1]
    assert f"{small_cluster.data_dir / 'full'}" in events[-1].message, events[-1].message
    run = await small_cluster.run()
    assert (run.state, run.config["run"]["num_steps"]) == (pb.RUN_STATE_FAILED, 1000), run


async def test_an_active_run_whose_configuration_is_deleted_is_shown_paused_and_resumed(
    small_cluster: Cluster, model: Path
) -> None:
    await start(small_cluster, model, num_steps=4)
    await small_cluster.pause()
    (small_cluster.data_dir / "full" / "config.json").unlink()
    run = await small_cluster.run()
    assert (run.state, run.config["run"]["num_steps"]) == (pb.RUN_STATE_PAUSED, 4), run
    await small_cluster.resume()
    await small_cluster.finish(4)
