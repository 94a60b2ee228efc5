"""Runs `pip install` and shows how far it is: a live line on a terminal, else a line every 10 s.

Usage: python tools/install.py PIP_INSTALL_ARGUMENTS... The exit code is pip's, which writes its errors itself.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
LIVE_S, PLAIN_S = 0.2, 10.0
_FOUND = re.compile(r"(?:Collecting|Processing|Requirement already satisfied:|Obtaining) (?:\S*/)?(?P<name>\S+)")
_FILE = re.compile(r"\s*Downloading (?:\S*/)?(?P<file>[^\s/]+\.(?:whl|tar\.gz|zip))(?:\.metadata)?(?P<size> \(.*\))?")
_INSTALLING = re.compile(r"Installing collected packages: (?P<names>.*)")


class Installation:
    """Follows the progress of pip in its output."""

    def __init__(self) -> None:
        self.num_found = 0
        self.now = "asking for the packages"
        """For example "package 41: numpy-2.4.2-cp311-manylinux.whl (16.6 MB)"."""

    def read(self, line: str) -> None:
        """Takes one line of pip's output."""
        if found := _FOUND.match(line):
            self.num_found += 1
            self.now = f"package {self.num_found}: {found['name']}"
        elif file := _FILE.match(line):
            self.now = f"package {self.num_found}: {file['file']}{file['size'] or ''}"
        elif installing := _INSTALLING.match(line):
            self.now = f"installing packages: {installing['names'].count(',') + 1}"


def install(arguments: Sequence[str], output: TextIO) -> int:
    """Runs pip, shows its progress in `output`, and returns its exit code."""
    is_live = output.isatty()
    installation, ended = Installation(), threading.Event()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*PIP, *arguments], stdout=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as pip:

        def read() -> None:
            assert pip.stdout is not None
            try:
                for line in pip.stdout:
                    installation.read(line)
            finally:
                ended.set()

        threading.Thread(target=read, daemon=True).start()
        while not ended.wait(LIVE_S if is_live else PLAIN_S):
            text = f"  {installation.now}"
            output.write(f"\r\x1b[2K{text[: _width()]}" if is_live else f"{text}\n")
            output.flush()
        if is_live:
            output.write("\r\x1b[2K")
        return pip.wait()


def _width() -> int:
    return shutil.get_terminal_size().columns - 1


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:], sys.stdout))
