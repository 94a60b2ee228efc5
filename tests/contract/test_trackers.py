"""A run's metrics in TensorBoard and Weights & Biases, as their own readers find them."""

import importlib.util
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.trackers import TrackerThread, trackers
from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.house import House, kinds
from tests.scripted import ScriptedGenerator, ScriptedReward, arithmetic_config

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard: pip install 'shoal[tracking]'"
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="needs wandb: pip install 'shoal[tracking]'"
)
HELD_OUT = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": 4}


def config(model: Path, tracking: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return arithmetic_config(model, tracking=tracking, evaluation=HELD_OUT, **sections)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows of a run: values by name and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@needs_tensorboard
async def test_tensorboard_shows_what_metrics_jsonl_holds_also_after_a_resume(house: House, model: Path) -> None:
    await house.add(worker_pb2.WORKER_KIND_REWARD, ScriptedReward(), "reward-0")
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, ScriptedGenerator(house.plane, delay_s=0.02), "generator-0")
    server = await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-0")
    sections = {"run": {"num_steps": 6}, "checkpoint": {"every_steps": 2}}
    await house.start(config(model, {"tensorboard": True}, **sections), run_id="tracked")
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 3)
    # A lost learner ends the run where no checkpoint is: a step is given up.
    await house.kill(server, "learner-0")
    assert (await house.end())[0].state == pb.RUN_STATE_FAILED
    await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-1")
    await house.start({}, run_id="tracked", resume=True)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    folder = house.data_dir / "tracked"
    shown, written = scalars(folder / "tensorboard"), rows(folder)
    for row in written:
        step = int(row.pop("step"))
        for name, value in row.items():
            assert shown[name][step] == pytest.approx(value, rel=1e-6), f"{name} at step {step}"
    assert sum(map(len, shown.values())) == sum(map(len, written)), "TensorBoard shows what was given up"


@needs_wandb
async def test_weights_and_biases_writes_a_run_for_its_sync(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    tracking = {"wandb": "offline", "wandb_project": "sums", "wandb_entity": "us", "wandb_group": "night"}
    await house.start(config(model, tracking, run={"num_steps": 3}), run_id="offline")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and "tracker_failed" not in kinds(events), kinds(events)
    (path,) = (house.data_dir / "offline" / "wandb").glob("offline-run-*/run-*.wandb")
    logged, about = _read_wandb(path)
    assert (about.project, about.entity, about.run_group) == ("sums", "us", "night")
    assert about.run_id.startswith("offline-"), about.run_id
    assert logged == rows(house.data_dir / "offline"), logged


def _read_wandb(path: Path) -> tuple[list[dict[str, float]], Any]:
    """The history rows of an offline run, and what it says of itself."""
    from wandb.proto import wandb_internal_pb2

    history: list[dict[str, float]] = []
    about = None
    for data in _log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            about = record.run
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.append({name: value for name, value in items.items() if not name.startswith("_")})
    return history, about


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, in blocks of 32 KiB; the file begins with seven bytes of its own."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # Whole, or the last part.
            yield record
            record = b""


async def test_a_missing_package_is_said_before_anything_starts(
    house: House, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(FailedPrecondition, match=r"wandb not installed here, for tracking.wandb: pip install") as error:
        await house.start(config(model, {"wandb": "offline"}), run_id="none")
    assert error.value.reason == "MISSING_EXTRA"
    assert not (house.data_dir / "none").exists()


class Broken:
    """Takes one step, then fails."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if self.steps:
            raise OSError("the network is down")
        self.steps.append(step)

    def restored(self, step: int) -> None: ...

    def close(self, *, failed: bool) -> None:
        raise AssertionError("a tracker that failed is left alone")


async def test_a_tracker_that_fails_is_told_of_and_does_not_end_the_run(
    house: House, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken()
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda folder: broken)
    monkeypatch.setattr("services.coordinator.preflight.check_extras", lambda extras: None)
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(config(model, {"tensorboard": True}, run={"num_steps": 4}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    failures = [event.message for event in events if event.kind == "tracker_failed"]
    assert len(failures) == 1 and "the network is down" in failures[0], failures
    assert broken.steps == [0] and kinds(events).count("step") == 4


def test_a_tracker_that_cannot_start_lets_its_caller_close_it() -> None:
    failures: list[tuple[str, str]] = []

    def start() -> Broken:
        raise ValueError("no such account")

    thread = TrackerThread("nobody", start, lambda name, reason: failures.append((name, reason)))
    thread.log(1, {"lr": 0.1})
    thread.close(failed=False)
    assert failures == [("nobody", "ValueError: no such account")]
