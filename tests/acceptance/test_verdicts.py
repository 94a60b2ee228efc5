"""Verdicts on 300 programs as models write them."""

import pytest

from services.reward.sandbox import run
from services.reward.verifiers import code
from tests.support.verdicts import PROGRAMS, read_rows, wrong_verdicts


def test_verdicts_on_all_programs_are_those_that_people_agree_on() -> None:
    if reason := code.unavailable():
        pytest.skip(f"no sandbox: {reason}")
    rows = [row for family in PROGRAMS for row in read_rows(family)]
    wrong = wrong_verdicts(rows, timeout_s=4.0, total_timeout_s=60.0)
    run.close()
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(wrong)
