"""Scores of text, length and form against those of open-instruct and TRL."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pytest

from services.reward.common.code_text import program_text
from services.reward.common.text import normalized, without_tags
from services.reward.compose import Composer, Output, cosine_scaled_length
from services.reward.verifiers.registry import VERIFIERS
from shoal.chat_templates.thoughts import without_thoughts
from shoal.config.tables.composition import FormatRewardConfig
from shoal.config.tables.reward import RewardConfig
from shoal.rollout import FinishReason, GroundTruth
from shoal.scores import ScoreOutcome, VerifierScore
from tests.golden import GoldenCase, golden_cases

_TEXT = ("string_matcher", "string_f1", "puzzle", "flan", "re_search")


def value(verifier: str, completion: str, label: Any = "", token_ids: list[int] | None = None, **options: Any) -> float:
    return VERIFIERS[verifier].judge(completion, label, token_ids or [], options).value


@golden_cases("other_verifiers", only=_TEXT)
def test_text_is_compared_as_open_instruct_compares_it(case: GoldenCase) -> None:
    case.check("score", value(case.config["verifier"], case.inputs["response"], case.inputs["label"]))


@golden_cases("other_verifiers", only=("max_length", "up_to_max_length"))
def test_length_is_rewarded_as_by_open_instruct_and_not_clamped(case: GoldenCase) -> None:
    tokens = [0] * case.inputs["completion_tokens"]
    options = {"max_length_tokens": case.config["max_length"]}
    case.check("score", value(case.config["verifier"], "x" * len(tokens), case.inputs["label"], tokens, **options))


@golden_cases("other_verifiers", only=("r1_format",))
def test_thoughts_and_answer_are_found_as_open_instruct_finds_them(case: GoldenCase) -> None:
    assert value("r1_format", case.inputs["response"], reward=case.config["reward"]) == case.expected["score"]


@golden_cases("other_verifiers", only=("think_format",))
def test_thoughts_at_the_start_are_found_as_trl_finds_them(case: GoldenCase) -> None:
    assert value("think_format", case.inputs["response"]) == case.expected["score"]


@golden_cases("other_verifiers", only=("soft_overlong_punishment",))
def test_overlong_completions_are_penalized_as_by_trl(case: GoldenCase) -> None:
    tokens = [0] * case.inputs["completion_tokens"]
    config = case.config
    options = {"max_length_tokens": config["max_completion_length"], "soft_cache_tokens": config["soft_cache"]}
    case.check("score", value("soft_overlong", "x" * len(tokens), "", tokens, **options))


@golden_cases("other_verifiers", only=("repetition_penalty",))
def test_repetition_is_penalized_as_by_trl(case: GoldenCase) -> None:
    tokens = case.inputs["token_ids"]
    options = {name: case.config[name] for name in ("ngram_size", "max_penalty")}
    case.check("score", value("repetition_penalty", "x" * len(tokens), "", tokens, **options))


@golden_cases("other_verifiers", only=("cosine_scaled_length",))
def test_length_and_correctness_are_rewarded_as_by_trl(case: GoldenCase) -> None:
    got = cosine_scaled_length(
        case.inputs["correct"],
        case.inputs["completion_tokens"],
        max_length=case.config["max_length"],
        correct_range=tuple(case.config["correct_range"]),
        wrong_range=tuple(case.config["wrong_range"]),
    )
    case.check("score", got)


@golden_cases("other_verifiers", only=("extract_code",))
def test_the_program_is_the_one_that_open_instruct_extracts(case: GoldenCase) -> None:
    assert program_text(case.inputs["text"]) == case.expected["code"]


@golden_cases("other_verifiers", only=("normalise_answer",))
def test_answers_are_normalized_as_open_instruct_does(case: GoldenCase) -> None:
    assert normalized(case.inputs["text"]) == case.expected["text"]


@golden_cases("other_verifiers", only=("remove_thinking",))
def test_thoughts_are_removed_as_open_instruct_does(case: GoldenCase) -> None:
    assert without_tags(without_thoughts(case.inputs["text"])) == case.expected["text"]


@golden_cases("other_verifiers", only=("reward_composition",))
def test_rewards_are_composed_as_by_open_instruct(case: GoldenCase) -> None:
    config, inputs = case.config, case.inputs
    composer = Composer(_reward_config(config), 4096, turns=config["reward_aggregator"])
    rewards, verifiable = [], []
    for place, (response, labels) in enumerate(zip(inputs["responses"], inputs["labels"], strict=True)):
        truths = [GroundTruth(item["verifier"], item["label"], item.get("weight", 1.0)) for item in labels]
        parts = [
            VerifierScore(truth.verifier, ScoreOutcome.SCORED, value(truth.verifier, response, truth.label))
            for truth in truths
        ]
        output = Output(
            response,
            FinishReason.STOP if inputs["finish_reasons"][place] == "stop" else FinishReason.LENGTH,
            turn_rewards=tuple(inputs["turn_rewards"][place]) if "turn_rewards" in inputs else (),
            is_good="tools" in inputs and _went_well(inputs["tools"][place]),
        )
        score = composer.score(place, truths, parts, output)
        rewards.append(score.reward)
        verifiable.append(next((part.value for part in score.parts if part.name == "verifiable"), 0.0))
        assert math.fsum(part.value for part in score.parts) == pytest.approx(score.reward, abs=1e-9), score.parts
    case.check("scores", rewards)
    if "verifiable_reward_mean" in case.expected:
        case.check("verifiable_reward_mean", fmean(verifiable))
        case.check("verifiable_correct_rate", fmean(paid > 0 for paid in verifiable))


def _reward_config(config: Mapping[str, Any]) -> RewardConfig:
    form = {
        "kind": "r1" if config["apply_r1_style_format_reward"] else "none",
        "mode": "add" if config["additive_format_reward"] else "gate",
        "value": config["r1_style_format_reward"],
    }
    return RewardConfig(
        format=FormatRewardConfig.model_validate(form),
        apply_verifiable_reward=config["apply_verifiable_reward"],
        verification_reward=config["verification_reward"],
        non_stop_penalty=config["non_stop_penalty_value"] if config["non_stop_penalty"] else None,
        only_reward_good_outputs=config["only_reward_good_outputs"],
    )


def _went_well(tools: Mapping[str, Any]) -> bool:
    return bool(tools["called"] and tools["output"] and not tools["error"] and not tools["timeout"])
