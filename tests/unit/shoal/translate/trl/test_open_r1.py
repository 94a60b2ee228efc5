"""Recipes of open-r1: reward functions by name, their defaults, and the TRL that they are written for."""

from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.translate import SYSTEMS, Translation, translation
from shoal.translate.sources.settings import Settings
from shoal.translate.trl.versions import MAY
from tests.support.translations import parsed

RECIPE = {
    "model_name_or_path": "m",
    "dataset_name": "d",
    "dataset_configs": ["all"],
    "num_generations": 4,
    "per_device_train_batch_size": 4,
}


def translate(**values: Any) -> Translation:
    return translation.translate(SYSTEMS["trl"], Settings(RECIPE | values))


def config_of(**values: Any) -> RunConfig:
    return parsed(translate(**values))


def test_each_function_becomes_a_part_of_the_reward_with_its_weight() -> None:
    functions = ["accuracy", "format", "tag_count", "reasoning_steps", "repetition_penalty", "soft_overlong_punishment"]
    reward = config_of(
        reward_funcs=functions,
        reward_weights=[1.0, 0.5, 0.25, 0.125, 2.0, 3.0],
        repetition_n_grams=4,
        repetition_max_penalty=-0.1,
        max_completion_len=100,
        soft_punish_cache=20,
    ).reward
    assert reward.weights == {"math": 1.0}
    assert (reward.format.kind, reward.format.mode, reward.format.value) == ("think_answer", "add", 0.5)
    assert (reward.style.tags, reward.style.steps) == (0.25, 0.125)
    assert (reward.repetition.unit, reward.repetition.ngram_size) == ("words", 4)
    assert reward.repetition.max_penalty == pytest.approx(-0.2)
    overlong = reward.overlong
    assert (overlong.factor, overlong.max_length_tokens, overlong.buffer_tokens) == (3.0, 100, 20)


def test_the_cosine_counts_characters_with_the_recipes_values() -> None:
    cosine = config_of(
        reward_funcs=["accuracy", "cosine"], cosine_max_len=3000, cosine_min_value_wrong=-1.0
    ).reward.cosine
    assert (cosine.factor, cosine.max_length_characters, cosine.max_length_tokens) == (1.0, 3000, None)
    assert (cosine.wrong_short, cosine.wrong_long, cosine.correct_long, cosine.correct_short) == (-1.0, -0.5, 0.5, 1.0)


def test_a_cosine_alone_needs_the_answer_but_not_a_reward_for_it() -> None:
    translated = translate(reward_funcs=["cosine"])
    assert translated.values["reward"]["apply_verifiable_reward"] is False
    assert translated.values["data"]["sources"][0]["verifier"] == "math"


def test_the_code_format_names_the_language_of_its_block() -> None:
    reward = config_of(reward_funcs=["accuracy", "code_format"], code_language="cpp").reward
    assert (reward.format.kind, reward.format.code_language) == ("think_answer", "cpp")


def test_a_recipe_without_functions_gets_those_of_open_r1() -> None:
    translated = translate()
    assert any(note.startswith("reward_funcs: ") and "accuracy, format, tag" in note for note in translated.notes)
    reward = parsed(translated).reward
    assert (reward.weights, reward.format.value, reward.style.tags) == ({"math": 1.0}, 1.0, 1.0)


def test_a_file_of_trl_without_functions_gets_none() -> None:
    values = {name: value for name, value in RECIPE.items() if name != "dataset_configs"}
    assert "reward" not in translation.translate(SYSTEMS["trl"], Settings(values)).values


@pytest.mark.parametrize("name", ["length", "code", "binary_code", "ioi_code", "cf_code"])
def test_functions_without_a_counterpart_are_refused_by_name(name: str) -> None:
    (refusal,) = translate(reward_funcs=["accuracy", name]).blocking
    assert (refusal.name, refusal.value) == ("reward_funcs", name)


@pytest.mark.parametrize("functions", [["format", "code_format"], ["format", "think_format_reward"], ["cosine"] * 2])
def test_a_second_function_of_one_kind_does_not_replace_the_first(functions: list[str]) -> None:
    (refusal,) = translate(reward_funcs=["accuracy", *functions]).blocking
    assert (refusal.name, refusal.value) == ("reward_funcs", functions[1])


def test_defaults_are_those_of_the_trl_that_open_r1_requires() -> None:
    translated = translate()
    config = parsed(translated)
    assert MAY in translated.toml
    assert config.correction.weight == "none", "TRL 0.18 does not correct for the engine's probabilities"
    assert (config.sampling.max_completion_tokens, config.data.max_prompt_tokens) == (256, 512)
    assert not config.learner.gradient_checkpointing
