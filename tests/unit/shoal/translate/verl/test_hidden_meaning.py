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
        ("rollout.agent.default_agent_loop", "tool_agent", "code of the source's own"),
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


@pytest.mark.parametrize(
    ("mode", "warmup", "versions", "staleness"),
    [
        ("sync", 1, 8, 0),
        ("colocate_async", 1, 8, 1),
        ("separate_async", 1.5, 8, 2),
        ("separate_async", 4, 3, 2),
        ("colocate_async", 0, 8, 0),
    ],
)
def test_a_trainer_that_samples_beside_training_has_staleness(
    mode: str, warmup: float, versions: int, staleness: int
) -> None:
    values = {"trainer.v1.trainer_mode": mode, "trainer.v1.sampler.max_off_policy_threshold": versions}
    values |= {f"trainer.v1.{mode}.num_warmup_batches": warmup} if mode != "sync" else {}
    assert config_of("verl", VERL | values).grpo.max_staleness == staleness, "a step's own weights are one version"


def test_the_schedule_of_a_separate_trainer_advances_with_each_mini_batch() -> None:
    values = {"actor_rollout_ref.actor.optim.lr_warmup_steps": 10}
    assert config_of("verl", VERL | values).learner.warmup_steps == 40, "4 mini-batches a step"
    separate = {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": 4}
    assert config_of("verl", VERL | values | separate).learner.warmup_steps == 10


def test_the_schedule_of_veomni_is_a_cosine_by_default() -> None:
    assert config_of("verl", VERL | {"model_engine": "veomni"}).learner.lr_scheduler == "cosine"
    given = {"model_engine": "veomni", "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant"}
    assert config_of("verl", VERL | given).learner.lr_scheduler == "constant"


def test_one_step_off_samples_one_step_ahead_and_takes_the_engines_probabilities() -> None:
    program = {"program": "verl.experimental.one_step_off_policy.main_ppo"}
    config = config_of("verl", VERL | program)
    assert (config.grpo.max_staleness, config.weights.inflight_updates) == (1, False)
    assert config.loss.baseline == "behavior", "its file of defaults sets bypass_mode"
    decoupled = program | {"algorithm.rollout_correction.bypass_mode": False}
    assert config_of("verl", VERL | decoupled).loss.baseline == "proximal"
    assert config_of("verl", VERL).loss.baseline == "proximal"


def test_a_step_of_fully_async_is_what_it_trains_on_between_two_publishes() -> None:
    values = {"program": "verl.experimental.fully_async_policy.fully_async_main", "data.train_batch_size": 0}
    values |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 32, "rollout.total_rollout_steps": 204800}
    values |= {"async_training.require_batches": 4, "async_training.trigger_parameter_sync_step": 4}
    values |= {"async_training.staleness_threshold": 0.5, "rollout.nnodes": 2, "rollout.n_gpus_per_node": 8}
    config = config_of("verl", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8} | values)
    assert (config.grpo.groups_per_step, config.grpo.num_mini_batches, config.run.num_steps) == (512, 16, 400)
    assert (config.grpo.max_staleness, config.launch.num_generators, config.loss.baseline) == (1, 8, "behavior")


def test_weights_that_verl_only_measures_are_noted() -> None:
    field = "algorithm.rollout_correction"
    values = VERL | {f"{field}.bypass_mode": True, f"{field}.rollout_is": "token"}
    result = translate_values("verl", values)
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert "correction" not in result.values and result.values["loss"]["baseline"] == "behavior"
    assert [note for note in result.notes if note.startswith(f"{field}.rollout_is = token: ")]
    (refusal,) = translate_values("verl", values | {f"{field}.rollout_rs": "token_k2"}).blocking
    assert refusal.name == f"{field}.rollout_rs" and "needs bypass_mode=false" in refusal.reason


def test_a_threshold_without_weights_may_be_null() -> None:
    field = "algorithm.rollout_correction"
    values = {f"{field}.rollout_is": None, f"{field}.rollout_is_threshold": None}
    assert config_of("verl", VERL | values).correction.weight == "none"


def test_a_lower_clip_above_one_is_one() -> None:
    values = {"policy_loss.loss_mode": "cispo", "clip_ratio_low": 10, "clip_ratio_high": 0.2}
    loss = config_of("verl", VERL | {f"actor_rollout_ref.actor.{name}": item for name, item in values.items()}).loss
    assert (loss.objective, loss.cispo_lower, loss.clip_low) == ("cispo", True, 1.0)


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
def test_losses_of_sequences_are_averaged_over_sequences(mode: str) -> None:
    values = VERL | {"actor_rollout_ref.actor.policy_loss.loss_mode": mode}
    assert config_of("verl", values).loss.aggregation == "seq-mean-token-mean", "verl's default is token-mean"
    asked = {"actor_rollout_ref.actor.loss_agg_mode": "token-mean", "actor_rollout_ref.actor.use_kl_loss": True}
    notes = translate_values("verl", values | asked).notes
    assert [note for note in notes if note.endswith(f"verl's {mode} always uses seq-mean-token-mean")]
    assert [note for note in notes if "KL and entropy" in note]


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean", "gpg"])
def test_clipping_that_a_loss_does_not_have_is_noted(mode: str) -> None:
    values = {"policy_loss.loss_mode": mode, "clip_ratio_c": 10.0, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}
    result = translate_values("verl", VERL | {f"actor_rollout_ref.actor.{name}": item for name, item in values.items()})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert f"actor_rollout_ref.actor.clip_ratio_c = 10: loss_mode {mode} has no dual clip" in result.notes


def test_parameters_are_offloaded_only_with_the_optimizer() -> None:
    field = "actor_rollout_ref.actor.fsdp_config"
    alone = translate_values("verl", VERL | {f"{field}.param_offload": True})
    assert alone.toml and "offload_parameters" not in alone.values["learner"]
    assert [note for note in alone.notes if note.startswith(f"{field}.param_offload = true: learner.offload")]
    both = VERL | {f"{field}.param_offload": True, f"{field}.optimizer_offload": True}
    assert config_of("verl", both).learner.offload_parameters


def test_a_row_is_packed_over_the_ranks_that_share_it() -> None:
    values = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 8192}
    values |= {"fsdp_config.ulysses_sequence_parallel_size": 4}
    learner = config_of(
        "verl", VERL | {f"actor_rollout_ref.actor.{name}": item for name, item in values.items()}
    ).learner
    assert (learner.sequence_parallel_size, learner.pack_tokens) == (4, 32768)


def test_layers_without_adapters_are_refused_only_with_adapters() -> None:
    values = {"actor_rollout_ref.model.exclude_modules": "DONT_EXCLUDE"}
    assert translate_values("verl", VERL | values).toml
    (refusal,) = translate_values("verl", VERL | values | {"actor_rollout_ref.model.lora_rank": 8}).blocking
    assert refusal.name == "actor_rollout_ref.model.exclude_modules"


def test_the_policy_is_not_held_back_for_a_critic() -> None:
    assert translate_values("verl", VERL | {"trainer.critic_warmup": 1}).toml
    (refusal,) = translate_values("verl", VERL | {"trainer.critic_warmup": 20}).blocking
    assert refusal.name == "trainer.critic_warmup"


def test_attention_and_dtype_are_the_learners() -> None:
    values = {"model.override_config.attn_implementation": "sdpa", "actor.fsdp_config.dtype": "float32"}
    learner = config_of("verl", VERL | {f"actor_rollout_ref.{name}": value for name, value in values.items()}).learner
    assert (learner.attention, learner.compute_dtype) == ("sdpa", "float32")


def test_a_class_of_the_data_is_settled_by_other_data_with_a_note() -> None:
    result = translate_values("verl", VERL | {"data.custom_cls.path": "my_data.py"})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert [note for note in result.notes if note.startswith("data.custom_cls.path = my_data.py")], result.notes
