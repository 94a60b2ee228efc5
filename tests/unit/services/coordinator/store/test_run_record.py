from pathlib import Path

import pytest

from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_record import TRAIN_NAME, RunRecord, RunState, new_run_id
from shoal.config.tables.run import RUN_NAME
from shoal.errors import DataLoss
from tests.support.parsed_commands import parse_command


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"{}", b'{"of_the_future": 1}'])
def test_the_error_of_a_lost_configuration_names_its_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DataLoss, match=r"sums .*config\.json"):
        RunRecord("sums", tmp_path).load_config()


@pytest.mark.parametrize("name", ["a", "a" * 47, "a" * 63])
def test_every_run_name_makes_a_run_id(name: str) -> None:
    assert RUN_NAME.fullmatch(new_run_id(name)), new_run_id(name)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ('"attempt": "x"', "attempt: "),
        ('"policy_version": -1', "policy_version: "),
        ('"create_time_s": 1e300', "create_time_s: "),
        ('"metrics": {"loss": []}', "metrics.loss: "),
        ('"state": "DREAMING"', "state: "),
        ('"message": "\\ud800"', "surrogates not allowed"),
        ('"of_the_future": 1', "of_the_future: "),
        ('"metrics": ' + "[" * 100_000, "nested deeper"),
    ],
)
def test_a_record_with_a_damaged_value_is_refused_by_its_name(tmp_path: Path, damage: str, named: str) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "run.json").write_text('{"run_id": "sums", "state": "FINISHED", ' + damage + "}")
    with pytest.raises(DataLoss, match=r"run\.json .*" + named):
        RunRecord.load(folder)
    assert not RunFolders(tmp_path).all()


@pytest.mark.parametrize(("coordinator", "returns"), [("", True), ("cluster", True), ("shoal-train-0a1b2c3d", False)])
def test_a_run_that_nobody_drives_names_what_takes_it_up(tmp_path: Path, coordinator: str, returns: bool) -> None:
    RunRecord("sums", tmp_path, RunState.QUEUED, coordinator=coordinator).save()
    shown = RunRecord.load(tmp_path)
    assert shown.state is RunState.FAILED and "shoal train --resume sums" in shown.message
    assert ("next start" in shown.message) == returns, shown.message


def test_the_commands_that_messages_tell_are_commands_of_shoal(tmp_path: Path) -> None:
    of_train = RunRecord("a-1", tmp_path / "it's" / "a-1", coordinator=f"{TRAIN_NAME}0", address="127.0.0.1:4711")
    of_service = RunRecord("a-1", tmp_path / "a-1", coordinator="c", address="10.0.0.1:50050")
    given = {
        of_train.resume_command(): {"resume": "a-1", "data_dir": tmp_path / "it's"},
        of_service.resume_command(): {"run": "a-1", "coordinator": "10.0.0.1:50050"},
        of_train.command("run resume"): {"run": "a-1", "coordinator": "127.0.0.1:4711"},
        of_train.command("run watch"): {"run": "a-1", "coordinator": "127.0.0.1:4711"},
        f"{of_service.folder_command('run rollouts')} --failed": {"run": "a-1", "data_dir": tmp_path, "failed": True},
    }
    for command, expected in given.items():
        parsed = parse_command(command)
        assert {name: parsed[name] for name in expected} == expected, (command, parsed)


def test_a_run_in_the_folder_runs_here_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunRecord("a", tmp_path / "runs" / "a").resume_command() == "shoal train --resume a"
