"""Paths and changes that the documentation shows fit the tree as it is."""

import re

from tests.support.repository import ROOT

FOLDERS = "services|shoal|tests|docs|configs|deploy|proto|tools|examples|benchmarks|requirements"
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "services/*/README.md", "deploy/README.md")
    for page in sorted(ROOT.glob(pattern))
]


def test_every_path_that_a_page_names_exists() -> None:
    named = {
        (page, path)
        for page in PAGES
        # Worked changes are about files that do not exist yet.
        for path in re.findall(
            rf"`((?:{FOLDERS})/[\w./-]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
    }
    assert len(named) > 50
    assert not sorted(f"{page.relative_to(ROOT)}: {path}" for page, path in named if not (ROOT / path).exists())


def test_each_change_in_extend_applies_to_the_tree() -> None:
    page = (ROOT / "docs" / "extend.md").read_text()
    missing, num_hunks = [], 0
    for block in re.findall(r"```diff\n(.*?)```", page, re.DOTALL):
        for file in re.split(r"^--- a/", block, flags=re.MULTILINE)[1:]:
            path, _, body = file.partition("\n")
            lines = (ROOT / path).read_text().splitlines()
            for hunk in re.split(r"^@@\n", body, flags=re.MULTILINE)[1:]:
                num_hunks += 1
                before = [line[1:] for line in hunk.splitlines() if not line.startswith("+")]
                if not _contains(lines, before):
                    missing.append(f"{path}: {before}")
    assert num_hunks >= 10
    assert not missing


def _contains(lines: list[str], part: list[str]) -> bool:
    return any(lines[start : start + len(part)] == part for start in range(len(lines) - len(part) + 1))
