"""Hints for fields that a configuration of ours does not have."""

import pytest

from shoal.translate import SYSTEMS
from shoal.translate.hints import field_hint


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
