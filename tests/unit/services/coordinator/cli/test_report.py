"""`shoal report`, from a run's folder."""

import os
from pathlib import Path

import pytest

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.store.run_record import RunRecord, RunState
from tests.support.parsed_commands import Shoal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "sums"
    folder.mkdir(parents=True)
    RunRecord("sums", folder, state=RunState.FINISHED, message="all steps are done").save()
    return folder


def test_a_run_is_found_by_its_name_by_its_folder_and_as_the_newest(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = str(folder.parent)
    monkeypatch.chdir(data_dir)
    for arguments in (["sums", "--data-dir", data_dir], [str(folder)], ["--data-dir", data_dir], ["sums"], ["./sums/"]):
        code, out, err = shoal("report", *arguments)
        assert (code, out) == (ExitCode.OK, f"the report: {folder / 'report.html'}\n"), err
        assert "all steps are done" in (folder / "report.html").read_text()
        (folder / "report.html").unlink()


@pytest.mark.parametrize("text", ["", "[]", '{"run_id": "sums"', '{"run_id": "sums", "state": "UNHEARD_OF"}'])
def test_a_damaged_record_of_a_run_is_named(shoal: Shoal, folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    code, _, err = shoal("report", str(folder))
    assert code == ExitCode.FAILED and str(folder / "run.json") in err, err


def test_the_report_goes_to_the_file_that_is_named(shoal: Shoal, folder: Path, tmp_path: Path) -> None:
    code, _, err = shoal("report", str(folder), "-o", str(tmp_path / "page.html"))
    assert code == ExitCode.OK, err
    assert (tmp_path / "page.html").exists() and not (folder / "report.html").exists()


def test_a_run_that_is_not_there_is_named_with_the_place(shoal: Shoal, tmp_path: Path) -> None:
    code, _, err = shoal("report", "sums", "--data-dir", str(tmp_path))
    assert code == ExitCode.NOT_FOUND
    assert "'sums'" in err and str(tmp_path) in err


def test_a_file_that_cannot_be_written_is_named_with_the_cure(shoal: Shoal, folder: Path, tmp_path: Path) -> None:
    code, _, err = shoal("report", str(folder), "-o", str(tmp_path / "none" / "page.html"))
    assert code == ExitCode.PRECONDITION
    assert str(tmp_path / "none" / "page.html") in err and "--output" in err
    assert os.listdir(folder) == ["run.json"]
