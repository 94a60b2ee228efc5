"""Verdicts on completions as models write them; tests/acceptance/test_verdicts.py has all programs."""

import logging
from collections.abc import Iterator

import pytest

from services.reward.sandbox import run
from services.reward.verifiers import code
from tests.support.verdicts import FAMILIES, PROGRAMS, read_rows, wrong_verdicts

_EACH_PROGRAM = 10
"""Of the programs, each of which takes a sandbox's time, one in so many."""
_KINDS = {"kinds", "blind_kinds", "code_kinds"}
"""Families that hold nothing but kinds of verdicts that were found to be wrong."""
_LIMITS = {"math": {"timeout_s": 60.0}, "strict_math": {"timeout_s": 60.0}}
"""By verifier. Computer algebra takes seconds on a busy machine; no verdict here is one for want of time."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(PROGRAMS)))
def test_verdicts_are_those_that_people_agree_on(family: str) -> None:
    rows = read_rows(family)
    wrong = []
    for name in sorted({row["verifier"] for row in rows}):
        wrong += wrong_verdicts([row for row in rows if row["verifier"] == name], **_LIMITS.get(name, {}))
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(wrong)


def test_verdicts_on_programs_are_those_that_people_agree_on() -> None:
    if reason := code.unavailable():
        pytest.skip(f"no sandbox: {reason}")
    rows = [row for family in PROGRAMS for row in read_rows(family)]
    wrong = wrong_verdicts(rows[::_EACH_PROGRAM], timeout_s=1.0, total_timeout_s=60.0)
    run.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_at_most_one_in_fifty_verdicts_is_known_to_be_wrong(family: str) -> None:
    rows = read_rows(family)
    known = [row for row in rows if "returns" in row]
    assert len(rows) >= (90 if family == "code_kinds" else 200)
    assert 50 * len(known) <= len(rows), f"{len(known)} of {len(rows)}"
    assert all("why" in row for row in known), known


def test_more_than_five_hundred_rows_are_of_kinds_that_were_wrong() -> None:
    rows = [row for family in sorted(_KINDS) for row in read_rows(family)]
    assert len(rows) > 500
    assert all(row["kind"] and row["cheat"] in (True, False) for row in rows)
    shown = [(row["verifier"], row["completion"], repr(row["label"])) for row in rows]
    assert len(set(shown)) == len(shown)
