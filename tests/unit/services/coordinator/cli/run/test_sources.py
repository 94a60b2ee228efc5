"""Runs are looked at in their folder, without a coordinator."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.cli.run import sources
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.run_lock import RunLock
from services.coordinator.store.run_record import RunRecord, RunState
from tests.support.configs import run_config
from tests.support.parsed_commands import Shoal
from tests.support.waiting import PATIENCE_S

CONFIG = run_config()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder with one run, "sums", that began 100 s ago, took one step and has ended."""
    folder = tmp_path / "runs" / "sums"
    folder.mkdir(parents=True)
    record = RunRecord("sums", folder, create_time_s=time.time() - 100, policy_version=1, num_steps=5)
    record.save_config(CONFIG)
    events = EventLog(folder / EVENTS)
    events.add("step", "step 1/5", step=1, num_steps=5, metrics={"objective/scores": 0.5})
    record.state, record.message = RunState.STOPPED, "stopped after step 1"
    record.save()
    events.add("state", record.message, state="STOPPED", policy_version=1)
    events.close()
    return tmp_path / "runs"


def test_a_folder_of_runs_needs_no_coordinator(shoal: Shoal, data_dir: Path) -> None:
    code, text, _ = shoal("run", "list", "--data-dir", str(data_dir))
    assert code == 0 and "sums  STOPPED  1/5" in text, text
    code, text, _ = shoal("run", "status", "-o", "json", "--data-dir", str(data_dir))
    run = json.loads(text)
    assert (run["run_id"], run["policy_version"], run["path"]) == ("sums", 1, str(data_dir / "sums"))
    code, text, _ = shoal("run", "rollouts", "sums", "-o", "json", "--data-dir", str(data_dir))
    assert (code, json.loads(text)) == (0, {"groups": [], "next_page_token": ""})
    code, _, error = shoal("run", "status", "words", "--data-dir", str(data_dir))
    assert code == 4 and "'words'" in error and str(data_dir) in error, error


@pytest.mark.parametrize("command", ["status", "rollouts", "watch"])
def test_a_run_is_looked_at_by_the_path_of_its_folder(
    shoal: Shoal, data_dir: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    by_name = shoal("run", command, "sums", "-o", "json", "--data-dir", str(data_dir))
    assert by_name[0] == 0 and by_name[1], by_name
    assert shoal("run", command, str(data_dir / "sums"), "-o", "json") == by_name, "a path goes before the environment"
    monkeypatch.chdir(data_dir)
    assert shoal("run", command, "sums/", "-o", "json") == by_name
    code, _, error = shoal("run", command, "./words")
    assert code == 4 and str(data_dir / "words") in error, error


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["pause"],
        ["resume"],
        ["stop"],
        ["checkpoint"],
        ["evaluate"],
        ["profile"],
        ["update"],
        ["start", "--resume"],
    ],
)
def test_a_coordinator_is_asked_for_no_path(shoal: Shoal, scripted: Any, command: list[str]) -> None:
    code, _, error = shoal("run", *command, "runs/sums", "--coordinator", "127.0.0.1:1")
    assert code == 2 and "'runs/sums'" in error, error


def test_watching_a_run_that_has_ended_prints_its_events_and_ends(shoal: Shoal, data_dir: Path) -> None:
    code, text, _ = shoal("run", "watch", "--data-dir", str(data_dir))
    assert code == 0
    assert [line.partition("] ")[2] for line in text.splitlines()[2:]] == [
        "step 1/5  reward 0.50", "stopped after step 1", f"the run's folder: {data_dir / 'sums'}",
    ]  # fmt: skip
    assert all(line.startswith("[ 10") for line in text.splitlines()[1:]), text
    code, text, _ = shoal("run", "watch", "-o", "json", "--data-dir", str(data_dir))
    assert text == (data_dir / "sums" / EVENTS).read_text()


@pytest.fixture
def lock(data_dir: Path) -> RunLock:
    record = RunRecord.load(data_dir / "sums")
    lock = RunLock(record.folder)
    record.state = RunState.RUNNING
    record.save()
    return lock


def take_step(folder: Path, step: int) -> None:
    events = EventLog(folder / EVENTS)
    events.add("step", f"step {step}/5", step=step, num_steps=5, metrics={})
    events.close()


class Watched:
    """Events that say what `shoal run watch` has seen of the coordinator of a folder."""

    def __init__(self) -> None:
        self.is_there, self.is_gone = threading.Event(), threading.Event()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched, is_expected = Watched(), sources._Driver.is_expected

    def look(driver: sources._Driver) -> bool:
        found = is_expected(driver)
        if driver._is_gone:
            watched.is_gone.set()
        elif found:
            watched.is_there.set()
        return found

    monkeypatch.setattr(sources._Driver, "is_expected", look)
    return watched


def test_watching_a_live_folder_ends_with_its_coordinator_if_no_other_comes(
    shoal: Shoal, data_dir: Path, lock: RunLock, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.coordinator.client.RECONNECT_S", 1.0)

    def drive() -> None:
        watched.is_there.wait(PATIENCE_S)
        take_step(data_dir / "sums", 2)
        lock.release()

    driving = threading.Thread(target=drive)
    driving.start()
    code, text, error = shoal("run", "watch", "--after", "2", "--data-dir", str(data_dir))
    driving.join()
    lines = [line.partition("] ")[2] for line in text.splitlines()[2:]]
    assert code == 1 and lines[0] == "step 2/5", text
    assert lines[1].endswith(f": shoal train --resume sums --data-dir {data_dir}"), text
    assert "1 s" in error, error


def test_watching_a_live_folder_goes_on_with_the_next_coordinator(
    shoal: Shoal, data_dir: Path, lock: RunLock, watched: Watched
) -> None:
    folder = data_dir / "sums"

    def drive() -> None:
        """Is killed; the next coordinator takes a step and ends the run."""
        watched.is_there.wait(PATIENCE_S)
        lock.release()
        watched.is_gone.wait(PATIENCE_S)
        again = RunLock(folder)
        take_step(folder, 2)
        record = RunRecord.load_as_left(folder)
        record.state, record.message = RunState.FINISHED, "finished after step 5"
        record.save()
        again.release()

    driving = threading.Thread(target=drive)
    driving.start()
    code, text, _ = shoal("run", "watch", "--after", "2", "--data-dir", str(data_dir))
    driving.join()
    assert code == 0 and "step 2/5" in text, text


def test_the_command_line_goes_before_the_environment_and_a_coordinator_before_a_folder(
    shoal: Shoal, data_dir: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA_DIR", str(data_dir))
    assert "FINISHED" in shoal("run", "list")[1], "the environment names both: the coordinator is asked"
    assert "STOPPED" in shoal("run", "list", "--data-dir", str(data_dir))[1]
    code, _, error = shoal("run", "list", "--data-dir", str(data_dir), "--coordinator", "h:1")
    assert code == 2 and "leave one out" in error, error
    monkeypatch.delenv("SHOAL_COORDINATOR")
    assert "STOPPED" in shoal("run", "list")[1]


def test_without_a_coordinator_and_a_folder_the_error_names_both_options(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_COORDINATOR", raising=False)
    code, _, error = shoal("run", "status")
    assert code == 4 and "--data-dir FOLDER" in error and "--coordinator HOST:PORT" in error, error


def test_the_error_of_a_coordinator_that_is_gone_names_the_folder(shoal: Shoal) -> None:
    code, _, error = shoal("run", "status", "--coordinator", "127.0.0.1:1")
    assert code == 6 and "no coordinator answers" in error and "use --data-dir FOLDER" in error, error
