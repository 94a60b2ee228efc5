"""Majorities of the answers to held-out questions, with numbers computed by hand."""

import numpy as np
import pytest

from services.coordinator.rollout.evaluation.result import AnsweredQuestion, EvaluationResult
from shoal.grpo.intervals import reward_interval
from shoal.rollout import Prompt, WeightVersion
from shoal.scores import Score, ScoreOutcome, VerifierScore


def question(*answers: tuple[str | None, float]) -> AnsweredQuestion:
    scores = tuple(
        Score(index, ScoreOutcome.SCORED, value, (VerifierScore("v", ScoreOutcome.SCORED, value, answer=answer),))
        for index, (answer, value) in enumerate(answers)
    )
    return AnsweredQuestion(Prompt("sums:0", np.zeros(1, np.int32), "", ()), (), scores)


RIGHT, WRONG, OTHER, NOTHING = ("5", 1.0), ("6", 0.0), ("7", 0.0), ("", 0.0)
UNCOMPARED = (None, 1.0)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([RIGHT, RIGHT, WRONG, OTHER], 1.0),
        ([RIGHT, WRONG, WRONG, OTHER], 0.0),
        ([RIGHT, RIGHT, WRONG, WRONG], 0.5),
        ([RIGHT, WRONG, OTHER], 1 / 3),
        ([RIGHT, NOTHING, NOTHING, NOTHING], 1.0),
        ([NOTHING, NOTHING, NOTHING], 0.0),
        ([RIGHT, UNCOMPARED, RIGHT], None),
    ],
)
def test_the_most_frequent_answer_counts(answers: list[tuple[str | None, float]], expected: float | None) -> None:
    assert question(*answers).majority == (None if expected is None else pytest.approx(expected))


def test_answers_of_two_verifiers_have_no_majority() -> None:
    parts = tuple(VerifierScore(name, ScoreOutcome.SCORED, 1.0, answer="5") for name in ("gsm8k", "math"))
    scores = tuple(Score(index, ScoreOutcome.SCORED, 2.0, parts) for index in range(3))
    assert AnsweredQuestion(Prompt("sums:0", np.zeros(1, np.int32), "", ()), (), scores).majority is None


def metrics(num_samples: int, *questions: AnsweredQuestion) -> dict[str, float]:
    return EvaluationResult(WeightVersion(0, 1), questions, num_samples, 1.0).metrics()


def test_where_nobody_says_what_is_correct_there_is_a_reward_and_no_rate() -> None:
    scores = tuple(
        Score(
            index, ScoreOutcome.SCORED, value, (VerifierScore("reward_model", ScoreOutcome.SCORED, value, answer="5"),)
        )
        for index, value in enumerate((2.0, 4.0, 3.0))
    )
    found = metrics(3, AnsweredQuestion(Prompt("sums:0", np.zeros(1, np.int32), "", ()), (), scores))
    assert found["eval/scores"] == found["eval/verifier/reward_model/reward"] == 3.0
    rates = [name for name in found if "correct" in name or "_at_" in name]
    assert rates == ["eval/verifier/reward_model/correct_rate"]


def test_the_mean_reward_has_an_interval_over_questions() -> None:
    asked = [question(("5", 1.0), ("6", 0.5)), question(("5", 0.25), ("6", 0.25)), question(WRONG, WRONG)]
    found = metrics(2, *asked, *asked)
    assert found["eval/scores"] == pytest.approx(1 / 3)
    assert reward_interval([0.75, 0.25, 0.0] * 2) == (found["eval/scores_low"], found["eval/scores_high"])
    assert "eval/scores_low" not in metrics(2, *asked, *asked[:2]), "five questions show too little"
    assert "eval/scores_low" not in metrics(1, *[question(RIGHT)] * 6), "equal rewards show no spread"


def test_the_interval_of_a_mean_reward_stays_in_the_range_of_the_rewards() -> None:
    found = metrics(1, *[question(RIGHT)] * 8, *[question(WRONG)] * 2)
    assert 0 < found["eval/scores_low"] < 0.8 < found["eval/scores_high"] < 1, found


def test_the_majority_is_a_metric_over_questions_with_all_answers_and_by_source() -> None:
    found = metrics(3, question(RIGHT, RIGHT, WRONG), question(WRONG, WRONG, RIGHT), question(RIGHT, RIGHT))
    assert found["eval/maj_at_3"] == found["eval/source/sums/maj_at_3"] == 0.5
    assert 0 < found["eval/maj_at_3_low"] < 0.5 < found["eval/maj_at_3_high"] < 1
    assert found["eval/pass_at_3"] == 1.0


def test_there_is_no_majority_of_two_or_where_a_question_cannot_be_compared() -> None:
    assert not any("maj_at" in name for name in metrics(2, question(RIGHT, RIGHT)))
    mixed = metrics(3, question(RIGHT, RIGHT, RIGHT), question(UNCOMPARED, UNCOMPARED, UNCOMPARED))
    assert not any("maj_at" in name for name in mixed)
