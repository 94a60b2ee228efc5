"""A run's metrics in TensorBoard, Weights & Biases and trackio, read with their own libraries."""

import importlib.util
import json
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from services.coordinator.reporting.trackers import trackers
from services.coordinator.reporting.trackers.trackers import TrackerThread
from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import HELD_OUT, ScriptedGenerator, arithmetic_config
from tests.support.waiting import eventually


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"needs {package}: pip install 'shoal[{extra}]'")


needs_tensorboard, needs_wandb = needs("tensorboard", "tracking"), needs("wandb", "tracking")
needs_trackio = needs("trackio", "trackio")


def config(model: Path, tracking: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return arithmetic_config(model, tracking=tracking, evaluation=HELD_OUT, **sections)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The values that TensorBoard shows for a run, by name and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@needs_tensorboard
async def test_tensorboard_shows_the_values_of_metrics_jsonl_also_after_a_resume(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    sections = {"run": {"num_steps": 6}, "checkpoint": {"every_steps": 2}, "coordinator": {"worker_timeout_s": 1}}
    await cluster.start(config(model, {"tensorboard": True}, **sections), run_id="tracked")
    await cluster.until("step", step=3)
    # A lost learner ends the run between checkpoints: the resume discards a step.
    await cluster.kill("learner-0")
    assert (await cluster.end())[0].state == pb.RUN_STATE_FAILED
    await cluster.add(cluster.learner, "learner-1")
    await cluster.run_to_end({}, run_id="tracked", resume=True)
    shown, written = scalars(cluster.data_dir / "tracked" / "tensorboard"), cluster.metrics()
    for row in written:
        step = int(row.pop("step"))
        for name, value in row.items():
            assert shown[name][step] == pytest.approx(value, rel=1e-6), f"{name} at step {step}"
    assert sum(map(len, shown.values())) == sum(map(len, written)), "TensorBoard shows a discarded step"


@needs_wandb
async def test_weights_and_biases_writes_an_offline_run_with_every_row(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    tracking = {"wandb": "offline", "wandb_project": "sums", "wandb_entity": "us", "wandb_group": "night"}
    _, events = await cluster.run_to_end(config(model, tracking, run={"num_steps": 3}), run_id="offline")
    assert "tracker_failed" not in kinds(events), kinds(events)
    (path,) = (cluster.data_dir / "offline" / "wandb").glob("offline-run-*/run-*.wandb")
    expected = cluster.metrics()
    # W&B's own process writes the file, and may finish after the run.
    await eventually(lambda: _read_wandb(path)[0] == expected, "W&B has written every row")
    _, about = _read_wandb(path)
    assert (about.project, about.entity, about.run_group) == ("sums", "us", "night")
    assert about.run_id.startswith("offline-"), about.run_id


def _use_trackio_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes trackio write to a folder, which it reads from the environment when it is imported."""
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)


def _read_wandb(path: Path) -> tuple[list[dict[str, float]], Any]:
    """Reads the history rows of an offline run, and its description."""
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
    """Yields the complete records of a LevelDB log with blocks of 32 KiB; the file begins with a header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if position + 7 + length > len(data):
            return  # This record is still being written.
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield record
            record = b""


@needs_trackio
async def test_trackio_has_every_row_also_after_a_resume(
    cluster: Cluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_trackio_folder(tmp_path / "trackio", monkeypatch)
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    tracking = {"trackio": True, "trackio_project": "sums"}
    await cluster.start(config(model, tracking, run={"name": "experiment", "num_steps": 6}), run_id="tracked")
    await cluster.until("step", step=2)
    await cluster.stop()
    await cluster.end()
    _, events = await cluster.run_to_end({}, run_id="tracked", resume=True)
    assert "tracker_failed" not in kinds(events), kinds(events)
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("sums") == ["tracked"]
    assert SQLiteStorage.get_run_config("sums", "tracked")["_Group"] == "experiment"
    shown = [
        {name: value for name, value in row.items() if name != "timestamp"}
        for row in SQLiteStorage.get_logs("sums", "tracked")
        if "restored_to_step" not in row
    ]
    assert shown == cluster.metrics()


@needs_tensorboard
@needs_wandb
@needs_trackio
async def test_completions_are_shown_in_events_and_in_each_tracker(
    cluster: Cluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_trackio_folder(tmp_path / "trackio", monkeypatch)
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    tracking = {"tensorboard": True, "wandb": "offline", "trackio": True, "num_completions": 3}
    run, events = await cluster.run_to_end(
        config(model, tracking | {"completions_every_steps": 2}, run={"num_steps": 3}),
        run_id="shown",
    )
    assert "tracker_failed" not in kinds(events), kinds(events)
    seen = [json_format.MessageToDict(event.attributes) for event in events if event.kind == "completions"]
    tables = [(values["name"], int(values["step"])) for values in seen]
    assert tables == [("eval_completions", 0), ("completions", 2), ("eval_completions", 3)], tables
    texts = [row["completion"] for row in seen[1]["completions"]]
    assert len(texts) == 3 and all(texts), seen[1]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from trackio.sqlite_storage import SQLiteStorage

    accumulator = EventAccumulator(str(Path(run.path) / "tensorboard"))
    accumulator.Reload()
    [tensor] = accumulator.Tensors("completions")
    markdown = [text.decode() for text in tensor.tensor_proto.string_val]
    assert tensor.step == 2 and all(f"    {text}" in shown for text, shown in zip(texts, markdown, strict=True))

    logged = {
        row["step"]: row["completions"] for row in SQLiteStorage.get_logs("shoal", "shown") if "completions" in row
    }
    assert [row["completion"] for row in logged[2]["_value"]] == texts, logged

    (path,) = (Path(run.path) / "wandb").glob("offline-run-*/run-*.wandb")
    await eventually(lambda: any("completions/path" in row for row in _read_wandb(path)[0]), "W&B has the table")
    history, about = _read_wandb(path)
    assert (about.run_group, about.display_name) == ("scripted", "shown"), "the experiment is not the group"
    [row] = [row for row in history if "completions/path" in row]
    table = json.loads((path.parent / "files" / row["completions/path"]).read_text())
    assert [dict(zip(table["columns"], values, strict=True))["completion"] for values in table["data"]] == texts


async def test_a_missing_package_is_reported_before_anything_starts(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(FailedPrecondition, match=r"tracking\.wandb.*pip install") as error:
        await cluster.start(config(model, {"wandb": "offline"}), run_id="none")
    assert error.value.reason == "MISSING_EXTRA"
    assert not (cluster.data_dir / "none").exists()


@dataclass
class Steps:
    steps: list[int] = field(default_factory=list)

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def restored(self, step: int) -> None: ...


@dataclass
class Slow(Steps):
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.may_go_on.wait()
        self.steps.append(step)

    def close(self, *, failed: bool) -> None:
        self.steps.append(-1)


async def test_a_run_does_not_wait_for_a_slow_tracker_which_gets_everything_in_the_end(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda folder: slow)
    monkeypatch.setattr("services.coordinator.run.checks.preflight.check_extras", lambda extras: None)
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(config(model, {"tensorboard": True}, run={"num_steps": 4}))
    events = await cluster.until("state", state="FINISHED")
    assert kinds(events).count("step") == 4 and not slow.steps, (kinds(events), slow.steps)
    slow.may_go_on.set()
    await cluster.finish()
    assert slow.steps == [0, 1, 2, 3, 4, 4, -1], slow.steps


class Broken(Steps):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.steps:
            raise OSError("the network is down")
        self.steps.append(step)

    def close(self, *, failed: bool) -> None:
        raise AssertionError("a tracker that failed is not called again")


async def test_a_tracker_that_fails_is_reported_and_does_not_end_the_run(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken()
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda folder: broken)
    monkeypatch.setattr("services.coordinator.run.checks.preflight.check_extras", lambda extras: None)
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    _, events = await cluster.run_to_end(config(model, {"tensorboard": True}, run={"num_steps": 4}))
    failures = [event.message for event in events if event.kind == "tracker_failed"]
    assert len(failures) == 1 and "the network is down" in failures[0], failures
    assert broken.steps == [0] and kinds(events).count("step") == 4


def test_a_tracker_that_cannot_start_can_be_closed() -> None:
    failures: list[tuple[str, str]] = []

    def start() -> Broken:
        raise ValueError("no such account")

    thread = TrackerThread("nobody", start, lambda name, reason: failures.append((name, reason)))
    thread.call(lambda tracker: tracker.log(1, {"lr": 0.1}))
    thread.end(failed=False)
    thread.join(60)
    assert failures == [("nobody", "ValueError: no such account")]
