"""Runs are read without a coordinator."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store.run_folders import RunFolders, describe, list_runs, locate_run
from services.coordinator.store.run_lock import LOCK, TRAIN_LOCK, RunLock
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, InvalidArgument, NotFound
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb
from tests.support.configs import run_config

CONFIG = run_config()


def _run(data_dir: Path, run_id: str, state: RunState, create_time_s: float) -> RunRecord:
    folder = data_dir / run_id
    folder.mkdir(parents=True)
    record = RunRecord(run_id, folder, state=state, create_time_s=create_time_s, policy_version=7)
    record.save()
    record.save_config(CONFIG)
    return record


def test_a_run_whose_coordinator_is_gone_has_failed_and_one_that_is_driven_has_not(tmp_path: Path) -> None:
    lock = RunLock(_run(tmp_path, "driven", RunState.RUNNING, 1.0).folder)
    _run(tmp_path, "left", RunState.PAUSED, 2.0)
    before = (tmp_path / "left" / "run.json").read_bytes()
    driven, left = (RunFolders(tmp_path).find(name) for name in ("driven", "left"))
    assert driven.state is RunState.RUNNING
    assert left.state is RunState.FAILED and left.message.endswith(f"--resume left --data-dir {tmp_path}")
    assert (tmp_path / "left" / "run.json").read_bytes() == before, "reading changed the run"
    lock.release()
    assert RunFolders(tmp_path).find("driven").state is RunState.FAILED


def test_no_name_means_the_run_that_is_driven_or_else_the_newest(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=str(tmp_path)):
        RunFolders(tmp_path).find("")
    older = _run(tmp_path, "older", RunState.RUNNING, 1.0)
    _run(tmp_path, "newer", RunState.FINISHED, 2.0)
    lock = RunLock(older.folder)
    assert RunFolders(tmp_path).find("").run_id == "older"
    lock.release()
    assert RunFolders(tmp_path).find("").run_id == "newer"


def test_a_run_is_located_by_its_name_first_and_by_the_path_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, other = tmp_path / "runs", tmp_path / "other"
    for folder in (runs / "sums", other / "sums", other / "words"):
        _run(folder.parent, folder.name, RunState.FINISHED, 1.0)
    monkeypatch.chdir(other)
    located = {run: locate_run(run, runs) for run in ("", "sums", "words", "none", "./sums/", str(runs / "sums"))}
    assert located == {
        "": (runs, ""),
        "sums": (runs, "sums"),
        "words": (other, "words"),
        "none": (runs, "none"),
        "./sums/": (other, "sums"),
        str(runs / "sums"): (runs, "sums"),
    }
    monkeypatch.chdir(runs / "sums")
    assert [locate_run(run, runs) for run in (".", "../../other/words")] == [(runs, "sums"), (other, "words")]


def test_a_path_that_holds_no_run_and_a_name_that_no_run_has_are_refused(tmp_path: Path) -> None:
    _run(tmp_path, "My sums", RunState.FINISHED, 1.0)
    for run in ("/", "..", str(tmp_path / "none"), f"./{'x' * 300}"):
        with pytest.raises(NotFound, match=re.escape(os.path.abspath(run))) as refused:
            locate_run(run, tmp_path)
        assert refused.value.reason == ErrorReason.NO_RUN
    for run in ("My sums", str(tmp_path / "My sums")):
        with pytest.raises(InvalidArgument, match="'My sums'"):
            locate_run(run, tmp_path)
    assert locate_run("x" * 300, tmp_path) == (tmp_path, "x" * 300)


def test_runs_are_listed_newest_first_a_page_at_a_time(tmp_path: Path) -> None:
    for number in range(3):
        _run(tmp_path, f"run-{number}", RunState.FINISHED, float(number))
    folders = RunFolders(tmp_path)
    first = list_runs(folders, pb.ListRunsRequest(page_size=2))
    second = list_runs(folders, pb.ListRunsRequest(page_size=2, page_token=first.next_page_token))
    assert [run.run_id for page in (first, second) for run in page.runs] == ["run-2", "run-1", "run-0"]
    assert not second.next_page_token


def test_a_list_shows_a_run_whose_record_cannot_be_read_with_what_is_wrong(tmp_path: Path) -> None:
    for name in ("good", "truncated", "lost"):
        _run(tmp_path, name, RunState.FINISHED, 1.0)
        (tmp_path / name / "ledger.sqlite").touch()
    (tmp_path / "of-no-run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "truncated" / "run.json").write_text('{"run_id": "trunc')
    (tmp_path / "lost" / "run.json").unlink()
    folders = RunFolders(tmp_path)
    listed = {run.run_id: run for run in list_runs(folders, pb.ListRunsRequest()).runs}
    assert listed.keys() == {"good", "truncated", "lost"}, listed
    for name in ("truncated", "lost"):
        run = listed[name]
        assert run.state == pb.RUN_STATE_FAILED and f"{tmp_path / name / 'run.json'}" in run.message, run
        with pytest.raises(DataLoss, match=f"rename .*{name} "):
            folders.find(name)
    assert folders.find("").run_id == "good"


def test_the_only_run_is_named_by_what_is_wrong_with_it(tmp_path: Path) -> None:
    _run(tmp_path, "only", RunState.FINISHED, 1.0)
    (tmp_path / "only" / "run.json").write_text("")
    with pytest.raises(DataLoss, match=r"only/run\.json"):
        RunFolders(tmp_path).find("")


def test_a_run_is_described_with_its_configuration(tmp_path: Path) -> None:
    run = describe(_run(tmp_path, "one", RunState.FINISHED, 1.0))
    assert (run.run_id, run.policy_version, run.config["model"]["path"]) == ("one", 7, "m")


def test_pages_of_runs_with_long_messages_fit_a_message_and_omit_no_run(tmp_path: Path) -> None:
    for number in range(12):
        record = _run(tmp_path, f"run-{number}", RunState.FAILED, float(number))
        record.message = "why " * (200 << 10)
        record.save()
    listed, token = [], ""
    while True:
        page = list_runs(RunFolders(tmp_path), pb.ListRunsRequest(page_size=500, page_token=token))
        assert page.ByteSize() < MAX_MESSAGE_BYTES, f"{page.ByteSize()} bytes for {len(page.runs)} runs"
        listed += [run.run_id for run in page.runs]
        token = page.next_page_token
        if not token:
            break
    assert listed == [f"run-{number}" for number in reversed(range(12))], listed


def test_a_run_that_failed_before_its_first_step_gives_its_name_back_and_keeps_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    (folder / "logs").mkdir(parents=True)
    RunRecord("sums", folder, RunState.FAILED, "no key").save()
    runs = RunFolders(tmp_path)
    name = runs.make_way("sums")
    assert name.startswith("sums-failed-") and not folder.exists() and (tmp_path / name / "logs").is_dir(), name
    [kept] = runs.all()
    assert (kept.run_id, kept.folder, kept.message) == (name, tmp_path / name, "no key")


@pytest.mark.parametrize(
    "changes",
    [
        {"state": RunState.STARTING},
        {"state": RunState.STOPPED},
        {"furthest_step": 1},
        {"last_checkpoint_id": "step-00000000"},
        {"lock": TRAIN_LOCK},
        {"lock": LOCK},
    ],
    ids=str,
)
def test_a_run_that_came_further_or_may_go_on_keeps_its_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "sums").mkdir()
    values = {"state": RunState.FAILED, **changes}
    name = values.pop("lock", "")
    lock = RunLock(tmp_path / "sums", name) if name else None
    RunRecord("sums", tmp_path / "sums", **values).save()
    assert RunFolders(tmp_path).make_way("sums") == "" and (tmp_path / "sums").is_dir()
    if lock is not None:
        lock.release()
