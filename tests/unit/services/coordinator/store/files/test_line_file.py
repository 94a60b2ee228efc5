from pathlib import Path

import pytest

from services.coordinator.store.files.line_file import LineFile
from tests.support.small_disk import small_disk


def test_lines_that_a_full_disk_did_not_take_follow_whole_and_in_order(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = LineFile(disk.folder / "lines")
        file.add("first")
        disk.fill()
        for number in range(3):
            file.add(f"{number}" * 5000)  # The first page has room for a part of it.
        assert file.path.read_text() == "first\n", "a part of a line was left"
        disk.free()
        file.add("last")
        lines = file.path.read_text().splitlines()
    assert [line[0] for line in lines] == ["f", "0", "1", "2", "l"] and len(lines[1]) == 5000, lines


@pytest.mark.parametrize(
    ("content", "left"),
    [("a\nb\n", "a\nb\n"), ("a\nb", "a\n"), ("a", ""), ("", "")],
    ids=["whole", "torn", "one", "empty"],
)
def test_a_last_line_that_is_not_whole_is_cut(tmp_path: Path, content: str, left: str) -> None:
    path = tmp_path / "lines"
    path.write_text(content)
    LineFile(path).cut()
    assert path.read_text() == left


def test_a_file_whose_folder_is_lost_costs_its_lines_and_no_error(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lost" / "lines")
    file.add("a")
    assert not file.path.exists()
    file.path.parent.mkdir()
    file.add("b")
    assert file.path.read_text() == "a\nb\n"
