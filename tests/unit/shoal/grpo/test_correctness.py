"""Who says that a completion is correct, over all kinds of verifiers."""

from typing import Any

import pytest

from services.reward.verifiers.registry import ALL_VERIFIERS
from shoal.config.tables.reward import RewardConfig
from shoal.grpo.correctness import is_correct
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore

SILENT = {"passthrough", "repetition_penalty", "soft_overlong", "max_length", "reasoning_steps", "reward_model"}


def reward(**values: Any) -> RewardConfig:
    return RewardConfig.model_validate(values)


def score(total: float, environment: float | None = None, **values: float) -> Score:
    parts = tuple(VerifierScore(name, ScoreOutcome.SCORED, value) for name, value in values.items())
    paid = () if environment is None else (RewardPart("environment", environment),)
    return Score(0, ScoreOutcome.SCORED, total, parts, paid)


def test_penalties_measures_and_reward_models_alone_say_nothing_by_default() -> None:
    names = [*ALL_VERIFIERS, "reward_model", "general-quality", "rubric", "my_function"]
    assert {name for name in names if not RewardConfig().says_correct(name)} == SILENT


@pytest.mark.parametrize("silent", sorted(SILENT))
def test_a_right_answer_is_correct_whatever_stands_beside_it(silent: str) -> None:
    for value in (-1.0, 0.0, 1.0):
        assert is_correct(RewardConfig(), score(0.0, gsm8k=1.0, **{silent: value})) is True
        assert is_correct(RewardConfig(), score(2.0, gsm8k=0.0, **{silent: value})) is False


@pytest.mark.parametrize("silent", sorted(SILENT))
def test_where_nobody_says_it_a_completion_is_neither_correct_nor_wrong(silent: str) -> None:
    assert is_correct(RewardConfig(), score(3.0, **{silent: 1.0})) is None


def test_all_that_can_say_it_have_to_by_default() -> None:
    assert is_correct(RewardConfig(), score(1.0, gsm8k=1.0, r1_format=0.0)) is False
    assert is_correct(RewardConfig(), score(1.3, gsm8k=1.0, brevity=0.99)) is False
    assert is_correct(RewardConfig(), score(2.0, gsm8k=1.0, r1_format=1.0)) is True


@pytest.mark.parametrize(("verifier", "options"), [("r1_format", {"reward": 0.5}), ("code", {"reward_speed": True})])
def test_a_verifier_whose_options_keep_it_below_1_does_not_say_it(verifier: str, options: dict[str, Any]) -> None:
    below = reward(verifiers={verifier: options})
    assert is_correct(below, score(0.0, gsm8k=1.0, **{verifier: 0.5})) is True
    assert not below.says_correct(verifier) and RewardConfig().says_correct(verifier)


def test_named_verifiers_alone_decide() -> None:
    named = reward(correct=["GSM8K", "reward_model"])
    assert is_correct(named, score(1.3, gsm8k=1.0, brevity=0.2)) is True
    assert is_correct(named, score(1.0, gsm8k=1.0, reward_model=0.9)) is False
    assert is_correct(named, score(1.0, math=1.0)) is None, "no row of this prompt's verifiers is named"


def test_an_environment_decides_where_no_verifier_does() -> None:
    assert is_correct(RewardConfig(), score(0.8, 1.0)) is True, "a penalty beside it changes nothing"
    assert is_correct(RewardConfig(), score(1.2, 0.9)) is False, "nor does a bonus"
    assert is_correct(RewardConfig(), score(0.0, 1.0, soft_overlong=-1.0)) is True
    assert is_correct(RewardConfig(), score(2.0, 1.0, gsm8k=0.0)) is False
    assert (is_correct(RewardConfig(), score(1.0)), is_correct(RewardConfig(), score(0.9))) == (True, False)
