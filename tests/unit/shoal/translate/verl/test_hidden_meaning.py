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


def test_weights_that_verl_only_measures_are_noted() -> None:
    field = "algorithm.rollout_correction"
    values = VERL | {f"{field}.bypass_mode": True, f"{field}.rollout_is": "token"}
    result = translate_values("verl", values)
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert "correction" not in result.values and result.values["loss"]["baseline"] == "behavior"
    assert [note for note in result.notes if note.startswith(f"{field}.rollout_is = token: ")]
    (refusal,) = translate_values("verl", values | {f"{field}.rollout_rs": "token_k2"}).blocking
    assert refusal.name == f"{field}.rollout_rs" and "needs bypass_mode=false" in refusal.reason


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


def test_a_class_of_the_data_is_settled_by_other_data_with_a_note() -> None:
    result = translate_values("verl", VERL | {"data.custom_cls.path": "my_data.py"})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert [note for note in result.notes if note.startswith("data.custom_cls.path = my_data.py")], result.notes
