"""The line of an evaluation."""

import numpy as np
import pytest

from services.coordinator.reporting.evaluation_words import describe_evaluation
from services.coordinator.rollout.evaluation.result import AnsweredQuestion, EvaluationResult
from shoal.config.tables.reward import RewardConfig
from shoal.rollout import Prompt, WeightVersion
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore
from tests.support.wordings import has_all, numbers_in


def described(*answers: dict[str, float], reward: RewardConfig | None = None, overlong: float = 0.0) -> str:
    """Describes an evaluation with one answer a question, by the values of its verifiers."""
    reward = reward or RewardConfig()
    questions = []
    for number, values in enumerate(answers):
        judged = tuple(VerifierScore(name, ScoreOutcome.SCORED, value) for name, value in values.items())
        total = sum(values.values())
        parts = [RewardPart("verifiable", total)] + ([RewardPart("overlong", overlong)] if overlong else [])
        score = Score(0, ScoreOutcome.SCORED, total + overlong, judged, tuple(parts))
        questions.append(
            AnsweredQuestion(Prompt(f"sums:{number}", np.zeros(1, np.int32), "", ()), (), (score,), reward)
        )
    result = EvaluationResult(WeightVersion(0, 3), tuple(questions), 1, 1.0)
    return describe_evaluation(reward, result, result.metrics(), None)


def test_an_evaluation_tells_the_mean_reward_beside_the_rate() -> None:
    line = described(*[{"gsm8k": 1.0}, *[{"gsm8k": 0.0}] * 3] * 2)
    assert numbers_in(line)[:4] == ["3", "25.0%", "8", "95%"] and "reward 0.25, 0.03 to 0.66" in line, line


def test_a_combined_reward_is_told_part_by_part_with_who_says_what_is_correct() -> None:
    answers = [{"gsm8k": 1.0, "brevity": 0.4}, {"gsm8k": 0.0, "brevity": 0.6}]
    line = described(*answers)
    assert has_all(line, " 0.0% of 2", "; brevity 0.50, gsm8k 0.50; correct: ") and "brevity, gsm8k" in line[-50:], line
    line = described(*answers, reward=RewardConfig(correct=["gsm8k"]))
    assert " 50.0% of 2" in line and "brevity" not in line.rpartition("correct: ")[2], line
    line = described({"gsm8k": 1.0}, {"gsm8k": 1.0}, overlong=-0.25)
    assert line.endswith("; reward 0.75; gsm8k 1.00, overlong -0.25)")


@pytest.mark.parametrize("verifier", ["reward_model", "soft_overlong"])
def test_an_evaluation_in_which_nobody_says_what_is_correct_has_its_reward(verifier: str) -> None:
    line = described({verifier: -1.0}, {verifier: -1.0})
    assert numbers_in(line) == ["3", "2", "-1.00"], line
