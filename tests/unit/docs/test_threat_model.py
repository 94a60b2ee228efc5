"""SECURITY.md names tests that exist."""

import re

from tests.support.repository import ROOT


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
