"""The progress of `make install`."""

import io
import sys
from pathlib import Path

import pytest

from tools import install
from tools.install import Installation

LINES = (
    "Looking in indexes: https://example.org/simple",
    "Collecting numpy==2.4.2 (from -r base.txt (line 3))",
    "  Downloading https://example.org/numpy-2.4.2-cp311.whl.metadata (62 kB)",
    "  Downloading numpy-2.4.2-cp311.whl (16.6 MB)",
    "Requirement already satisfied: pip in ./lib (26.0)",
    "Obtaining file:///shoal",
    "Processing /wheels/torch-2.13.0.whl (from -r learner.txt (line 2))",
    "Installing collected packages: numpy, shoal",
)


class Output(io.StringIO):
    """An output that makes a file once it has shown a package."""

    def __init__(self, file: Path, *, is_terminal: bool) -> None:
        super().__init__()
        self._file = file
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if "numpy" in text:
            self._file.touch()
        return super().write(text)


def test_pip_output_says_how_many_packages_are_found_and_what_happens_now() -> None:
    installation = Installation()
    shown = [installation.now]
    for line in LINES:
        installation.read(line + "\n")
        shown.append(installation.now)
    assert shown == [
        "asking for the packages",
        "asking for the packages",
        "package 1: numpy==2.4.2",
        "package 1: numpy-2.4.2-cp311.whl (62 kB)",
        "package 1: numpy-2.4.2-cp311.whl (16.6 MB)",
        "package 2: pip",
        "package 3: shoal",
        "package 4: torch-2.13.0.whl",
        "installing packages: 2",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_shown_while_pip_runs_and_its_exit_code_is_returned(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "shown"
    wait = f"while not os.path.exists({str(shown)!r}): time.sleep(0.01)"
    pip = f"import os, sys, time\nprint('Collecting numpy')\n{wait}\nsys.exit(3)"
    monkeypatch.setattr(install, "PIP", (sys.executable, "-c", pip))
    monkeypatch.setattr(install, "LIVE_S", 0.01)
    monkeypatch.setattr(install, "PLAIN_S", 0.01)
    output = Output(shown, is_terminal=is_terminal)
    assert install.install([], output) == 3
    lines = output.getvalue()
    assert "  package 1: numpy" in lines and ("\r" in lines) == is_terminal, lines


def test_output_that_is_no_text_is_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = "import sys\nsys.stdout.buffer.write(b'Collecting caf\\xe9\\n' + 100 * b'\\xff\\n')\nsys.exit(3)"
    monkeypatch.setattr(install, "PIP", (sys.executable, "-c", pip))
    monkeypatch.setattr(install, "PLAIN_S", 0.01)
    assert install.install([], Output(tmp_path / "shown", is_terminal=False)) == 3
