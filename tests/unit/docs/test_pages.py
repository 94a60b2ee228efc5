"""Pages of the documentation name what there is: paths, changes, tests, reasons of errors, features to come."""

import re

from shoal.error_reasons import ErrorReason
from shoal.translate.shared.field import NOT_YET
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


def test_every_test_in_the_threat_model_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text[text.index("## Threat model") : text.index("## What is protected")]
    named = re.findall(r"`((?:unit|contract)/[\w/.]+)`", table)
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / "tests" / path).exists()]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    without = [
        row.split("|")[1].strip() for row in rows if not re.search(r"`(unit|contract)/|the same", row.split("|")[4])
    ]
    assert not without, f"no test shows: {without}"


def test_every_error_reason_has_exactly_one_row_with_a_cause_and_a_cure() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(reason for reason, _, _ in rows) == sorted(ErrorReason)


def test_the_page_lists_what_is_not_yet_available() -> None:
    _, _, section = (ROOT / "docs" / "translation.md").read_text().partition("## Not yet available\n\n")
    assert section.splitlines() == [f"* **{feature}**: {reason}" for feature, reason in NOT_YET.items()]
