from pathlib import Path

import pytest

from services.coordinator.rollout.evaluation.history import EvaluationHistory, RateChange, steps_with_other_questions
from tests.support.wordings import numbers_in


def rates(num_correct: int, num: int = 20) -> dict[str, float]:
    return {f"arithmetic:{index}": float(index < num_correct) for index in range(num)}


def test_the_change_is_since_the_first_evaluation_and_says_when_it_is_within_noise(tmp_path: Path) -> None:
    history = EvaluationHistory(tmp_path / "evaluations.jsonl")
    assert history.add(0, rates(4)) is None
    small, large = history.add(10, rates(7)), history.add(20, rates(16))
    assert small is not None and large is not None
    assert "noise" in str(small) and numbers_in(str(small)) == ["15.0", "95%", "-3.2", "+30.5"], small
    assert "noise" not in str(large) and numbers_in(str(large)) == ["60.0", "95%", "+31.9", "+77.2"], large
    assert (large.since_step, large.rate_before, large.rate, large.num_questions) == (0, 0.2, 0.8, 20)


def test_only_questions_scored_in_both_evaluations_are_compared(tmp_path: Path) -> None:
    history = EvaluationHistory(tmp_path / "evaluations.jsonl")
    history.add(0, {"a": 0.0, "b": 1.0, "c": 1.0})
    change = history.add(4, {"b": 0.5, "c": 1.0, "d": 0.0})
    assert change is not None
    assert (change.num_questions, change.rate_before, change.change) == (2, 1.0, -0.25)
    assert history.add(5, {"d": 1.0}) is None, "no question in common"


def test_an_evaluation_without_a_score_is_nothing_to_compare_with(tmp_path: Path) -> None:
    history = EvaluationHistory(tmp_path / "evaluations.jsonl")
    history.add(0, {})
    history.add(1, rates(4))
    change = history.add(2, rates(8))
    assert change is not None and change.since_step == 1


def test_the_steps_at_which_the_questions_change_are_told(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    assert steps_with_other_questions(path) == []
    history = EvaluationHistory(path)
    for step, digest in ((0, ""), (2, "a"), (4, "a"), (6, "b"), (8, "b"), (10, "a")):
        history.add(step, rates(4), {"ev.jsonl": digest} if digest else None)
    assert steps_with_other_questions(path) == [6, 10], "the first says nothing, and had those of the next"


def test_evaluations_of_other_data_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    history = EvaluationHistory(path)
    history.add(0, rates(4), {"ev.jsonl": "a"})
    assert history.add(2, rates(8), {"ev.jsonl": "b"}) is None, "the questions are others"
    change = history.add(4, rates(9), {"ev.jsonl": "b", "more.jsonl": "c"})
    assert change is not None and (change.since_step, change.rate_before) == (2, 0.4)
    resumed = EvaluationHistory(path)
    resumed.keep_until(2)
    assert [resumed.is_comparable(step, {"ev.jsonl": "b"}) for step in (0, 2)] == [False, True]
    for data, since in (("b", 2), ("a", 0)):
        again = resumed.add(6, rates(12), {"ev.jsonl": data})
        assert again is not None and again.since_step == since, f"{data}: {again}"


def test_an_evaluation_that_does_not_say_its_data_had_those_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    EvaluationHistory(path).add(0, rates(4))
    known = EvaluationHistory(path)
    known.keep_until(0)
    change = known.add(2, rates(8), {"ev.jsonl": "a"})
    assert change is not None and change.since_step == 0
    changed = EvaluationHistory(path)
    changed.keep_until(2)
    assert changed.add(4, rates(9), {"ev.jsonl": "b"}) is None


def test_a_restore_forgets_the_evaluations_after_it(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    history = EvaluationHistory(path)
    for step in (0, 4, 8):
        history.add(step, rates(step))
    resumed = EvaluationHistory(path)
    resumed.keep_until(4)
    change = resumed.add(6, rates(10))
    assert change is not None and (change.since_step, change.rate_before, change.rate) == (0, 0.0, 0.5)
    assert len(path.read_text().splitlines()) == 3
    from_the_beginning = EvaluationHistory(path)
    from_the_beginning.keep_until(-1)
    assert from_the_beginning.add(2, rates(1)) is None and len(path.read_text().splitlines()) == 1


def test_a_change_survives_the_attributes_of_an_event(tmp_path: Path) -> None:
    history = EvaluationHistory(tmp_path / "evaluations.jsonl")
    history.add(0, rates(1))
    change = history.add(3, rates(2))
    assert change is not None
    assert RateChange.from_attributes(change.attributes()) == change
    assert change.metrics()["eval/correct_rate_change"] == pytest.approx(0.05)


def test_evaluations_by_another_meaning_of_correct_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    EvaluationHistory(path).add(0, rates(4))
    resumed = EvaluationHistory(path, ["gsm8k"])
    resumed.keep_until(5)
    assert resumed.add(5, rates(8)) is None
    again = EvaluationHistory(path, ["gsm8k"])
    again.keep_until(6)
    change = again.add(9, rates(10))
    assert change is not None and (change.since_step, change.rate_before) == (5, 0.4)
