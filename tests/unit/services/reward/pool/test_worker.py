"""Tests of the answers of a pool process, also when a verifier breaks."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from services.reward.pool.worker import judge
from services.reward.verifiers.registry import VERIFIERS
from shoal.rollout import StepScore


def raising(error: BaseException) -> Callable[[str, Any], Verdict]:
    def verify(completion: str, label: Any) -> Verdict:
        raise error

    return verify


@pytest.mark.parametrize(
    ("verify", "outcome", "detail"),
    [
        (raising(ZeroDivisionError("by zero")), "failed", "ZeroDivisionError: by zero"),
        (raising(MemoryError()), "failed", "MemoryError"),
        (raising(RecursionError("too deep")), "failed", "RecursionError"),
        (raising(SystemExit(0)), "failed", "SystemExit"),
        (raising(Unscorable("no label")), "unscorable", "no label"),
        (lambda completion, label: Verdict(math.nan), "failed", "nan"),
        (lambda completion, label: Verdict(0.5, "half"), "scored", "half"),
    ],
)
def test_a_verifier_that_breaks_is_failed_and_never_scored(
    monkeypatch: pytest.MonkeyPatch, verify: Callable[[str, Any], Verdict], outcome: str, detail: str
) -> None:
    monkeypatch.setitem(VERIFIERS, "breaks", Verifier(verify, "1 or 0"))
    answer = judge("breaks", "text", "label")
    assert answer["outcome"] == outcome
    assert detail in answer["detail"]
    assert answer["value"] == (0.5 if outcome == "scored" else 0.0)


def test_a_detail_is_short_and_valid_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "wordy", Verifier(lambda completion, label: Verdict(1.0, completion), "1"))
    detail = judge("wordy", "\ud800" * 10_000, None)["detail"]
    assert len(detail.encode("utf-8")) == 500


def test_step_scores_are_returned_and_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (StepScore(4, 0.5), StepScore(9, 1.0))
    monkeypatch.setitem(VERIFIERS, "process", Verifier(lambda completion, label: Verdict(1.0, step_scores=steps), "1"))
    assert judge("process", "text", "label")["steps"] == [[4, 0.5], [9, 1.0]]
    broken = (StepScore(4, math.inf),)
    monkeypatch.setitem(VERIFIERS, "process", Verifier(lambda completion, label: Verdict(1.0, step_scores=broken), "1"))
    answer = judge("process", "text", "label")
    assert answer["outcome"] == "failed" and not answer["steps"], answer
