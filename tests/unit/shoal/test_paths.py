"""What people read about a file that cannot be read."""

from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.errors import InvalidArgument
from shoal.paths import why_unread
from shoal.translate import translate_arguments


def reason(path: Path) -> str:
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return why_unread(error)
    raise AssertionError(f"{path} can be read")


def test_the_reason_has_neither_the_path_nor_an_error_number(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    assert reason(tmp_path / "none").startswith("No such file")
    assert reason(tmp_path) == "Is a directory"
    assert "UTF-8" in reason(tmp_path / "bytes") and "byte 3" in reason(tmp_path / "bytes")
    assert why_unread(ValueError("line 3: no value")) == "line 3: no value"


@pytest.mark.parametrize("name", ["none.yaml", "folder.yaml", "bytes.yaml"])
def test_sources_and_configurations_that_cannot_be_read_are_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff")
    file = tmp_path / name
    for read in (lambda: translate_arguments("trl", [str(file)]), lambda: load_config(file, [])):
        with pytest.raises(InvalidArgument) as caught:
            read()
        assert str(file) in caught.value.message, caught.value.message
        assert "Errno" not in caught.value.message and "codec" not in caught.value.message, caught.value.message
