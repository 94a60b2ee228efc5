"""The files that a page of the documentation prints: a bold name, and the file below it."""

import re
from pathlib import Path

from tests.support.repository import ROOT


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def write_files(page: str, folder: Path) -> None:
    for name, text in re.findall(r"\*\*`([\w.]+)`\*\*\n\n```\w+\n(.*?)```", text_of(page), re.DOTALL):
        (folder / name).write_text(text)
