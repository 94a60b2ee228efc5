"""docs/troubleshooting.md lists the reasons that errors carry, all of them and no other."""

import re

from shoal.error_reasons import ErrorReason
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_every_error_reason_has_exactly_one_row_with_a_cause_and_a_cure() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert sorted(reason for reason, _, _ in rows) == sorted(ErrorReason)
