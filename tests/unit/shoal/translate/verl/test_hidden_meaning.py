"""Tests that what changes the numbers is mapped or refused, also among settings of verl that do not."""

from typing import Any

import pytest

from tests.support.translations import config_of, translate_values

VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "trainer.total_training_steps": 10,
}
KL = VERL | {"actor_rollout_ref.actor.use_kl_loss": True}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("rollout.engine_kwargs.vllm.kv_cache_dtype", "fp8", "quantized engines"),
        ("rollout.engine_kwargs.vllm.hf_overrides", {"rope_scaling": {}}, "as its files define it"),
        ("rollout.agent.default_agent_loop", "tool_agent", "multi-turn"),
        ("actor.fsdp_config.qat.enable", True, "quantization-aware"),
        ("ref.model.path", "another", "the model that training begins with"),
    ],
)
def test_what_changes_the_numbers_is_refused_by_name(name: str, value: Any, reason: str) -> None:
    refused = translate_values("verl", VERL | {f"actor_rollout_ref.{name}": value}).blocking
    assert [refusal.name for refusal in refused] == [f"actor_rollout_ref.{name}"], refused
    assert reason in refused[0].reason


def test_a_reference_that_follows_the_policy_is_translated() -> None:
    reference = {"sync_ref_model": True, "ref_model_sync_steps": 128, "ref_model_mixup_alpha": 0.9}
    values = {f"actor_rollout_ref.ref.{name}": value for name, value in reference.items()}
    kl = config_of("verl", KL | values).kl
    assert (kl.reference_update_steps, kl.reference_alpha) == (128, 0.9)
    assert config_of("verl", KL).kl.reference_update_steps is None
    assert [note for note in translate_values("verl", VERL | values).notes if note.endswith("no KL is computed")]


@pytest.mark.parametrize(("mode", "staleness"), [("sync", 0), ("colocate_async", 4), ("separate_async", 4)])
def test_a_trainer_that_samples_beside_training_has_staleness(mode: str, staleness: int) -> None:
    values = {"trainer.v1.trainer_mode": mode, "trainer.v1.sampler.max_off_policy_threshold": 4}
    assert config_of("verl", VERL | values).grpo.max_staleness == staleness


def test_attention_and_dtype_are_the_learners() -> None:
    values = {"model.override_config.attn_implementation": "sdpa", "actor.fsdp_config.dtype": "float32"}
    learner = config_of("verl", VERL | {f"actor_rollout_ref.{name}": value for name, value in values.items()}).learner
    assert (learner.attention, learner.compute_dtype) == ("sdpa", "float32")


def test_a_class_of_the_data_is_settled_by_other_data_with_a_note() -> None:
    result = translate_values("verl", VERL | {"data.custom_cls.path": "my_data.py"})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert [note for note in result.notes if note.startswith("data.custom_cls.path = my_data.py")], result.notes
