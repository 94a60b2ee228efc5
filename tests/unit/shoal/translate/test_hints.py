"""Hints for fields that a configuration of ours does not have."""

import pytest

from shoal.config.fields import all_fields
from shoal.config.run import RunConfig
from shoal.translate import SYSTEMS
from shoal.translate.hints import _IN_DAILY_USE, field_hint, meant_fields


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("kl.beta", "what open-instruct, unsloth and trl call beta is kl.coef here"),
        ("learner.lr", "what verl calls lr is learner.learning_rate here"),
        ("num_generations", "what unsloth and trl call num_generations is grpo.group_size here"),
        ("epsilon", "is loss.clip_high and loss.clip_low here"),
        ("data.train_batch_size", "what verl calls train_batch_size is grpo.groups_per_step here"),
        ("num_train_epochs", "what unsloth and trl call num_train_epochs is run.total_epochs here"),
        ("use_vllm", "call use_vllm has no counterpart here: completions are always sampled by vLLM"),
        ("actor_rollout_ref", "verl has such a table; `shoal config translate --from verl` reads it"),
    ],
)
def test_a_name_of_another_system_is_translated(field: str, hint: str) -> None:
    found = field_hint(field, SYSTEMS.values())
    assert found.startswith(f"{field}: ") and hint in found, found


@pytest.mark.parametrize("field", ["grpo.groupsize", "reward_funcs", "", "model.pth"])
def test_there_is_no_hint_for_a_name_that_no_system_has_or_that_decides_too_much(field: str) -> None:
    assert field_hint(field, SYSTEMS.values()) == ""


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("learner.lr", ["learner.learning_rate"]),
        ("lr", ["learner.learning_rate"]),
        ("kl.beta", ["kl.coef"]),
        ("grpo.num_generations", ["grpo.group_size"]),
        ("grpo.n", ["grpo.group_size"]),
        ("evaluation.n", ["evaluation.samples_per_prompt"]),
        ("learner.bs", ["grpo.groups_per_step"]),
        ("grpo.n_samples", ["grpo.group_size"]),
        ("grpo.epsilon", ["loss.clip_high", "loss.clip_low"]),
        ("reward_funcs", []),
        ("grpo.groupsize", []),
    ],
)
def test_the_field_that_a_name_of_another_system_means_is_known(field: str, meant: list[str]) -> None:
    assert meant_fields(field, SYSTEMS.values()) == meant


def test_names_in_daily_use_mean_fields_that_exist() -> None:
    assert set(_IN_DAILY_USE.values()) <= set(all_fields(RunConfig))
