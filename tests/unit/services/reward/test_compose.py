"""Tests of the composition of verdicts into a reward."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from services.reward.compose import Composer, Output
from shoal.config import RunConfig
from shoal.config.tables.reward import RewardConfig
from shoal.rollout import FinishReason, GroundTruth
from shoal.scores import Score, ScoreOutcome, VerifierScore

SCORED, UNSCORABLE, FAILED = ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED
TRUTHS = [GroundTruth("a", None, 10.0), GroundTruth("b", None, -0.5)]
RIGHT_FORM = "<think>t</think> <answer>5</answer>"


def composer(limit: int = 100, **reward: Any) -> Composer:
    return Composer(RewardConfig.model_validate(reward), limit)


def score_of(
    *values: float, text: str = "5", num_tokens: int = 0, finish: str = "stop", limit: int = 100, **reward: Any
) -> Score:
    """Composes the values of verifiers of weight 1; without values, a single value of 1."""
    values = values or (1.0,)
    truths = [GroundTruth("v", None)] * len(values)
    output = Output(text, FinishReason(finish), range(num_tokens))
    return composer(limit, **reward).score(0, truths, [VerifierScore("v", SCORED, value) for value in values], output)


def parts(score: Score) -> dict[str, float]:
    assert math.fsum(part.value for part in score.parts) == pytest.approx(score.reward), score
    return {part.name: part.value for part in score.parts}


def test_the_reward_is_the_weighted_sum_of_the_values() -> None:
    judged = [VerifierScore("a", SCORED, 1.0), VerifierScore("b", SCORED, 0.5)]
    score = composer().score(3, TRUTHS, judged, Output("5", FinishReason.STOP))
    assert (score.sample_index, score.outcome, score.reward) == (3, SCORED, 9.75)
    assert parts(score) == {"verifiable": 9.75}


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([SCORED, UNSCORABLE], UNSCORABLE),
        ([FAILED, UNSCORABLE], FAILED),
        ([UNSCORABLE, FAILED], FAILED),
        ([FAILED, SCORED], FAILED),
    ],
)
def test_the_outcome_is_the_worst_verifier_outcome(outcomes: list[ScoreOutcome], expected: ScoreOutcome) -> None:
    judged = [VerifierScore("v", outcome, 1.0) for outcome in outcomes]
    rules = composer(non_stop_penalty=-1, format={"kind": "r1", "mode": "add"})
    score = rules.score(0, [GroundTruth("v", None)] * len(judged), judged, Output(RIGHT_FORM, FinishReason.LENGTH))
    assert (score.outcome, score.reward, score.parts) == (expected, 0.0, ()), (
        "a part must not reward a completion that no verifier scored"
    )


@pytest.mark.parametrize("value", [1.0, 0.5])
def test_a_gate_pays_the_verifier_values_if_the_format_is_right_for_every_format_value(value: float) -> None:
    form = {"kind": "r1", "mode": "gate", "value": value}
    assert score_of(text=RIGHT_FORM, format=form, verification_reward=10).reward == 10
    gated = score_of(text="5", format=form, verification_reward=10)
    assert (gated.reward, parts(gated)) == (0, {"verifiable": 10, "format": -10})


def test_an_added_format_reward_is_paid_even_for_a_wrong_answer() -> None:
    form = {"kind": "r1", "mode": "add", "value": 0.5}
    assert parts(score_of(0.0, text=RIGHT_FORM, format=form)) == {"verifiable": 0, "format": 0.5}
    assert score_of(1.0, text="5", format=form).reward == 1


def test_the_think_format_requires_only_the_thoughts() -> None:
    form = {"kind": "think", "mode": "add"}
    assert score_of(0.0, text="<think>t</think> 5", format=form).reward == 1


def test_without_the_verifiable_reward_only_the_other_parts_pay() -> None:
    score = score_of(1.0, text=RIGHT_FORM, apply_verifiable_reward=False, format={"kind": "r1"})
    assert parts(score) == {"format": 1.0}


@pytest.mark.parametrize(("finish", "text", "reward"), [("stop", "5", 1), ("length", "5", 0), ("stop", " \n", 0)])
def test_good_outputs_stop_by_themselves_and_are_not_empty(finish: str, text: str, reward: float) -> None:
    assert score_of(finish=finish, text=text, only_reward_good_outputs=True).reward == reward


def test_the_non_stop_penalty_replaces_every_other_part() -> None:
    settings: dict[str, Any] = {"non_stop_penalty": 0, "overlong": {"factor": 1, "buffer_tokens": 10}}
    score = score_of(1.0, num_tokens=100, finish="length", **settings)
    assert (score.reward, parts(score)) == (0, {"verifiable": 1, "overlong": -1, "non_stop": 0})
    score = score_of(1.0, num_tokens=95, finish="stop", **settings)
    assert parts(score) == {"verifiable": 1, "overlong": -0.5, "non_stop": 0}


@pytest.mark.parametrize(("num_tokens", "lost"), [(1, 0), (60, 0), (70, 0.5), (80, 1), (500, 1)])
def test_the_overlong_penalty_grows_linearly_over_the_buffer(num_tokens: int, lost: float) -> None:
    overlong = {"factor": 2, "max_length_tokens": 80, "buffer_tokens": 20}
    assert parts(score_of(0.0, num_tokens=num_tokens, overlong=overlong))["overlong"] == -2 * lost


def test_the_length_penalty_applies_only_to_correct_completions_by_default() -> None:
    assert parts(score_of(1.0, num_tokens=25, length={"coef": 0.4}))["length"] == pytest.approx(-0.1)
    assert parts(score_of(1.0, num_tokens=900, length={"coef": 0.4}))["length"] == pytest.approx(-0.4)
    assert parts(score_of(0.0, num_tokens=25, length={"coef": 0.4}))["length"] == 0
    everywhere = {"coef": 0.4, "only_correct": False}
    assert parts(score_of(0.0, num_tokens=25, length=everywhere))["length"] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("value", "num_tokens", "expected"), [(1, 0, 1), (1, 100, 0.5), (1, 50, 0.75), (0, 0, -1), (0, 200, -0.5)]
)
def test_the_cosine_reward_runs_from_the_short_to_the_long_value(
    value: float, num_tokens: int, expected: float
) -> None:
    score = score_of(value, num_tokens=num_tokens, text="5" if num_tokens else "", cosine={"factor": 3})
    assert parts(score)["cosine"] == pytest.approx(3 * expected)


@pytest.mark.parametrize(("verifiers", "penalty"), [([], -0.25), (["V"], -0.25), (["w", "v"], -0.25), (["w"], 0)])
def test_the_repetition_penalty_applies_to_the_verifiers_that_it_names(verifiers: list[str], penalty: float) -> None:
    rules = composer(repetition={"max_penalty": -0.5, "ngram_size": 1, "verifiers": verifiers})
    score = rules.score(
        0, [GroundTruth("v", None)], [VerifierScore("v", SCORED, 1)], Output("x", FinishReason.STOP, [7, 7, 7, 8])
    )
    assert parts(score) == {"verifiable": 1, "repetition": penalty}


def test_the_repetition_penalty_may_count_words_of_the_text() -> None:
    # Three pairs of words, two of which are the same in lower case: a third of them is repeated.
    repetition = {"max_penalty": -0.9, "ngram_size": 2, "unit": "words"}
    score = score_of(text="Go on\n go ON", repetition=repetition)
    assert parts(score)["repetition"] == pytest.approx(-0.3)
    assert parts(score_of(text="go", repetition=repetition))["repetition"] == 0, "it is shorter than a pair"


def test_the_cosine_reward_may_count_characters_of_the_text() -> None:
    cosine = {"factor": 2, "max_length_characters": 8, "correct_short": 1, "correct_long": 0.5}
    assert parts(score_of(1.0, text="abcd", cosine=cosine))["cosine"] == pytest.approx(1.5)
    assert parts(score_of(1.0, text="abcdefgh", num_tokens=1, cosine=cosine))["cosine"] == pytest.approx(1.0)


def test_style_is_rewarded_beside_the_verifiers_whatever_the_answer() -> None:
    text = "<think>\nStep 1: a\n- b\n</think>\n<answer>\n5\n</answer>\nand\n<think>\n"
    score = score_of(0.0, text=text, style={"tags": 0.5, "steps": 3})
    # Three of the four tags occur once; "Step 1:" and "\\n-" are two of three signs.
    assert parts(score) == {"verifiable": 0, "tags": 0.375, "steps": 2}


@pytest.mark.parametrize(("language", "reward"), [("", 1.25), ("python", 1.25), ("cpp", 1.0)])
def test_the_think_answer_format_may_require_a_program(language: str, reward: float) -> None:
    text = "<think>\nt\n</think>\n<answer>\n```python\nx\n```\n</answer>"
    required = {"kind": "think_answer", "mode": "add", "value": 0.25, "code_language": language}
    assert score_of(text=text, format=required).reward == reward


def test_a_language_needs_the_format_that_reads_it() -> None:
    with pytest.raises(ValidationError, match="code_language"):
        composer(format={"kind": "r1", "code_language": "cpp"})


def test_a_completion_of_unknown_length_does_not_count_as_a_short_one() -> None:
    score = score_of(1.0, text="5", num_tokens=0, cosine={"factor": 1})
    assert (score.outcome, score.reward) == (UNSCORABLE, 0)
    assert score_of(1.0, text="", num_tokens=0, cosine={"factor": 1}).outcome is SCORED


@pytest.mark.parametrize("advantage", ["per_verifier", "partial_rewards"])
def test_separate_verifier_values_allow_no_composition(advantage: str) -> None:
    run = {"model": {"path": "m"}, "data": {"sources": [{"path": "a.jsonl"}]}, "advantage": {advantage: True}}
    RunConfig.model_validate(run)
    with pytest.raises(ValidationError, match=f"advantage.{advantage} "):
        RunConfig.model_validate(run | {"reward": {"overlong": {"factor": 1}}})


@pytest.mark.parametrize("beside", ["soft_overlong", "repetition_penalty", "passthrough", "reasoning_steps"])
def test_the_cosine_pays_a_right_answer_as_correct_beside_a_verifier_that_says_nothing(beside: str) -> None:
    truths = [GroundTruth("gsm8k", "5"), GroundTruth(beside, "64")]
    output = Output("5", FinishReason.STOP, range(1))
    for value, paid in ((1.0, 1.0), (0.0, -1.0)):
        judged = [VerifierScore("gsm8k", SCORED, value), VerifierScore(beside, SCORED, 0.0)]
        score = composer(1024, cosine={"factor": 1}).score(0, truths, judged, output)
        assert parts(score)["cosine"] == pytest.approx(paid, abs=1e-5), (beside, value)


def test_the_length_penalty_takes_named_verifiers_at_their_word() -> None:
    truths = [GroundTruth("gsm8k", "5"), GroundTruth("brevity", "", 0.3)]
    judged = [VerifierScore("gsm8k", SCORED, 1.0), VerifierScore("brevity", SCORED, 0.5)]
    output = Output("5", FinishReason.STOP, range(50))
    for named, paid in ((["gsm8k"], -0.5), (["gsm8k", "brevity"], 0.0), ([], 0.0)):
        score = composer(100, length={"coef": 1}, correct=named).score(0, truths, judged, output)
        assert parts(score)["length"] == paid, named


@pytest.mark.parametrize(("paid", "cosine"), [(1.0, 1.0), (0.0, -1.0), (None, -1.0)])
def test_the_cosine_goes_by_an_environment_that_judges_alone(paid: float | None, cosine: float) -> None:
    output = Output("5", FinishReason.STOP, range(1), episode_reward=paid)
    score = composer(1024, cosine={"factor": 1}).score(0, [], [], output)
    assert parts(score)["cosine"] == pytest.approx(cosine, abs=1e-5)


@pytest.mark.parametrize(("turns", "paid"), [("sum", 5.75), ("last", 5.25), ("tokens", 5.0)])
def test_the_reward_of_an_environment_is_a_part_beside_that_of_the_verifiers(turns: Any, paid: float) -> None:
    output = Output("5", FinishReason.STOP, turn_rewards=(0.5, 0.25), episode_reward=3.0)
    composing = Composer(RewardConfig(verification_reward=2.0), 100, turns=turns)
    score = composing.score(0, [GroundTruth("v", None)], [VerifierScore("v", SCORED, 1.0)], output)
    assert score.reward == pytest.approx(paid)
    assert parts(score) == pytest.approx({"verifiable": 2.0, "environment": paid - 2.0})


def test_a_verifier_and_an_environment_pay_alike_unless_the_configuration_says_otherwise() -> None:
    output = Output("5", FinishReason.STOP, episode_reward=1.0)
    score = Composer(RewardConfig(), 100).score(0, [GroundTruth("v", None)], [VerifierScore("v", SCORED, 1.0)], output)
    assert parts(score) == {"verifiable": 1.0, "environment": 1.0}


def test_an_environment_alone_makes_a_reward_without_any_verifier() -> None:
    output = Output("", FinishReason.STOP, turn_rewards=(0.5, 0.25))
    score = Composer(RewardConfig(), 100, turns="sum").score(0, [], [], output)
    assert (score.outcome, score.reward) == (SCORED, 0.75)


@pytest.mark.parametrize("outcome", [UNSCORABLE, FAILED])
def test_an_environment_that_did_not_score_gives_no_reward(outcome: ScoreOutcome) -> None:
    output = Output("5", FinishReason.STOP, episode_reward=1.0, outcome=outcome)
    score = composer().score(0, [GroundTruth("v", None)], [VerifierScore("v", SCORED, 1.0)], output)
    assert (score.outcome, score.reward) == (outcome, 0.0)
