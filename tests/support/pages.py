"""The files that a page of the documentation prints: a bold name, and the file below it."""

import re
from pathlib import Path

from tests.support.repository import ROOT


def text_of(page: str) -> str:
    """Returns the text of a page in docs."""
    return (ROOT / "docs" / page).read_text()


def files_of(page: str) -> dict[str, str]:
    """Returns the files of a page, by name."""
    return dict(re.findall(r"\*\*`([\w.]+)`\*\*\n\n```\w+\n(.*?)```", text_of(page), re.DOTALL))


def write_files(page: str, folder: Path) -> None:
    """Writes the files of a page."""
    for name, text in files_of(page).items():
        (folder / name).write_text(text)
