"""Tests of the translation of ROLL's settings."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.translations import ROLL_GUIDE, config_of, parsed, translate_file, translate_values


def test_the_example_of_the_roll_guide_is_translated_with_the_constants_of_roll() -> None:
    config = config_of("roll", ROLL_GUIDE)
    assert (config.grpo.groups_per_step, config.grpo.group_size) == (64, 8)
    assert (config.data.max_prompt_tokens, config.sampling.max_completion_tokens) == (2048, 4096)
    assert (config.advantage.baseline, config.advantage.scale, config.advantage.std_ddof) == (
        "group_mean",
        "group_std",
        1,
    )
    assert (config.advantage.whiten, config.advantage.clip, config.advantage.reward_clip) == (True, 2.0, 10)
    assert (config.kl.coef, config.kl.place, config.kl.estimator, config.kl.output_clamp) == (0.001, "loss", "k3", 10)
    assert config.loss.aggregation == "seq-mean-token-mean"
    assert config.loss.dual_clip == pytest.approx(1.4), "1 + 2 x pg_clip"
    assert (config.loss.clip_low, config.loss.clip_high) == (0.2, 0.2)


def test_a_yaml_file_of_roll_is_read_with_nested_tables_and_references(tmp_path: Path) -> None:
    text = (
        "pretrain: org/model\nrollout_batch_size: 32\nnum_return_sequences_in_group: 8\nresponse_length: 512\n"
        "adv_estimator: grpo\nexp_name: 'a run'\nlogging_dir: ./out/${exp_name}\n"
        "actor_train:\n  training_args:\n    learning_rate: 1.0e-6\n    per_device_train_batch_size: 1\n"
        "    gradient_accumulation_steps: 32\n  device_mapping: list(range(0,4))\n"
        "  data_args:\n    file_name:\n      - data/a.jsonl\n"
        "actor_infer:\n  generating_args:\n    temperature: 0.99\n    top_p: 0.99\n    top_k: 100\n"
    )
    config = parsed(translate_file("roll", tmp_path / "rlvr.yaml", text))
    assert (config.learner.learning_rate, config.launch.num_learner_ranks) == (1e-6, 4)
    assert config.grpo.num_mini_batches == 32 * 8 // (1 * 32 * 4)
    assert (config.run.name, config.data.sources[0].path) == ("a-run", "data/a.jsonl")


_PG = {"actor_train.worker_cls": "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"}
"""The only class of worker that reads pg_variant; it does not read importance_sampling."""


@pytest.mark.parametrize(
    ("values", "objective", "options"),
    [
        ({"importance_sampling": "seq"}, "gspo", {"clip_low": 0.2}),
        (_PG | {"pg_variant": "cispo"}, "cispo", {"clip_low": 0.1, "clip_high": 0.1, "cispo_lower": True}),
        (_PG | {"pg_variant": "tis", "tis_upper_bound": 2.0}, "truncated_is", {"ratio_low": 0.0, "ratio_high": 2.0}),
        (_PG | {"pg_variant": "topr", "topr_negative_weight": 0.5}, "topr", {"topr_negative_weight": 0.5}),
        (_PG | {"pg_variant": "kimi15"}, "kimi15", {"kimi15_tau": 0.1}),
        (_PG | {"pg_variant": "vanilla"}, "policy_gradient", {}),
        (_PG | {"importance_sampling": "seq"}, "ppo_clip", {}),
        ({"pg_variant": "cispo"}, "ppo_clip", {}),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.28}, "ppo_clip", {"clip_low": 0.2, "clip_high": 0.28}),
    ],
)
def test_loss_variants_of_roll_map_to_objectives(
    values: dict[str, Any], objective: str, options: dict[str, Any]
) -> None:
    loss = config_of(
        "roll", {"adv_estimator": "grpo", "response_length": 64, "num_return_sequences_in_group": 4, **values}
    ).loss
    assert loss.objective == objective
    assert {name: getattr(loss, name) for name in options} == options


@pytest.mark.parametrize(
    ("values", "baseline", "scale"),
    [
        ({"reward_norm": "running", "reward_shift": True}, "running_mean", "none"),
        ({"reward_norm": "running", "reward_scale": True}, "none", "running_std"),
        ({"reward_norm": "running", "reward_shift": True, "reward_scale": True}, "running_mean", "running_std"),
        ({"norm_mean_type": "group", "norm_std_type": "running"}, "group_mean", "running_std"),
        ({"reward_norm": "batch"}, "batch_mean", "batch_std"),
        ({"reward_norm": "batch", "reward_shift": True, "reward_scale": True}, "batch_mean", "none"),
        ({"reward_norm": "group", "reward_scale": True}, "group_mean", "group_std"),
        ({"adv_estimator": "grpo", "reward_norm": "running", "reward_shift": True}, "group_mean", "none"),
        ({"reward_shift": True}, "none", "none"),
        ({"reward_norm": "None"}, "none", "none"),
    ],
)
def test_older_normalization_fields_of_roll_keep_their_meaning(
    values: dict[str, Any], baseline: str, scale: str
) -> None:
    advantage = config_of("roll", ROLL_GUIDE | {"adv_estimator": "reinforce"} | values).advantage
    assert (advantage.baseline, advantage.scale, advantage.std_ddof, advantage.std_eps) == (baseline, scale, 1, 1e-6)


def test_a_reward_model_of_roll_is_accepted_once_reward_model_path_is_set() -> None:
    roll = ROLL_GUIDE | {"reward.model_args.model_type": "x"}
    assert "--set reward.model.path=MODEL" in str(translate_values("roll", roll).blocking[0])
    assert not translate_values("roll", roll, "reward.model.path=org/r").blocking


@pytest.mark.parametrize(
    ("values", "lora", "freeze"),
    [
        (
            {"lora_target": "q_proj, v_proj", "lora_rank": 32, "lora_alpha": 16},
            {"rank": 32, "alpha": 16, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]},
            [],
        ),
        (
            {"lora_target": "all", "lora_dropout": 0.05, "freeze_module_prefix": "model.layers.0."},
            {"rank": 8, "alpha": 16, "dropout": 0.05, "target_modules": ["all-linear"]},
            [],
        ),
        (
            {"lora_rank": 64, "freeze_module_prefix": "model.embed, model.layers.0."},
            None,
            ["model.embed", "model.layers.0."],
        ),
    ],
)
def test_adapters_and_frozen_parts_of_roll_are_taken_over(
    values: dict[str, Any], lora: dict[str, Any] | None, freeze: list[str]
) -> None:
    model = {f"actor_train.model_args.{name}": value for name, value in values.items()}
    learner = config_of("roll", ROLL_GUIDE | model).learner
    assert learner.freeze == freeze
    if lora is None:
        assert not learner.lora.is_on
    else:
        assert {name: getattr(learner.lora, name) for name in lora} == lora


@pytest.mark.parametrize("layers", [r".*\.(q_proj|v_proj)$", "linear_qkv,linear_proj"])
def test_layers_by_a_pattern_or_by_names_of_megatron_are_refused(layers: str) -> None:
    values = ROLL_GUIDE | {"actor_train.model_args.lora_target": layers}
    assert "contains patterns" in translate_values("roll", values).blocking[0].reason


def test_a_frozen_part_is_taken_over_unless_only_megatron_or_vision_models_have_its_name() -> None:
    strategy = {"actor_train.strategy_args.strategy_name": "megatron_train"}
    layers = ROLL_GUIDE | {"actor_train.model_args.freeze_module_prefix": "vision_model,decoder.layers.0"}
    assert config_of("roll", layers).learner.freeze == ["decoder.layers.0"]
    refused = translate_values("roll", layers | strategy).blocking
    assert [refusal.cure for refusal in refused] == ["learner.freeze"]
    vision = ROLL_GUIDE | strategy | {"actor_train.model_args.freeze_module_prefix": "vision_model"}
    assert config_of("roll", vision).learner.freeze == []


@pytest.mark.parametrize(
    ("strategy", "decays_all", "scheduler"),
    [
        ("megatron_train", False, "constant_with_warmup"),
        ("deepspeed_train", False, "constant"),
        ("fsdp2_train", True, "constant"),
    ],
)
def test_weight_decay_and_warm_up_are_those_of_rolls_trainer(strategy: str, decays_all: bool, scheduler: str) -> None:
    training = {"weight_decay": 0.01, "lr_scheduler_type": "constant", "warmup_steps": 20}
    values = {f"actor_train.training_args.{name}": value for name, value in training.items()}
    learner = config_of("roll", ROLL_GUIDE | values | {"actor_train.strategy_args.strategy_name": strategy}).learner
    assert (learner.weight_decay, learner.weight_decay_on_bias_and_norm) == (0.01, decays_all)
    assert (learner.lr_scheduler, learner.warmup_steps) == (scheduler, 0 if scheduler == "constant" else 20)


@pytest.mark.parametrize(
    "mapping", [[0, 1, 2, 3], "[0, 1, 2, 3]", "list([0,1,8,9])", "list(range(0,2))+list(range(8,10))"]
)
def test_devices_are_counted_in_every_form(mapping: object) -> None:
    assert config_of("roll", ROLL_GUIDE | {"actor_train.device_mapping": mapping}).launch.num_learner_ranks == 4


def test_what_roll_computes_in_another_way_is_noted() -> None:
    values = ROLL_GUIDE | {
        "adv_estimator": "reinforce",
        "norm_mean_type": "batch",
        "difficulty_mask": True,
        "actor_infer.generating_args.temperature": 0.6,
        "actor_train.strategy_args.strategy_name": "megatron_train",
        "actor_train.model_args.lora_target": "all-linear",
    }
    notes = "\n".join(translate_values("roll", values).notes)
    for what in ("statistics of a batch", "divides logits", "has its own adapter"):
        assert what in notes


def test_a_field_of_images_is_refused_by_the_name_of_the_feature() -> None:
    refused = translate_values("roll", ROLL_GUIDE | {"actor_train.data_args.image_max_pixels": 1048576}).blocking
    assert "images, audio and video" in refused[0].reason


@pytest.mark.parametrize(
    ("given", "top_p", "top_k"),
    [
        ({"top_p": 0.99, "top_k": 100}, 0.99, 100),
        ({"top_p": 1.0, "top_k": -1}, 1.0, 0),
        ({"top_p": 0.9, "top_k": -1}, 0.9, 1024),
        ({"temperature": 1.0}, 0.7, 50),
        ({}, 1.0, 0),
    ],
)
def test_tokens_are_drawn_as_in_roll_with_its_defaults_where_it_samples(
    given: dict[str, Any], top_p: float, top_k: int
) -> None:
    values = {f"actor_infer.generating_args.{name}": value for name, value in given.items()}
    sampling = config_of("roll", ROLL_GUIDE | values).sampling
    assert (sampling.top_p, sampling.top_k) == (top_p, top_k)


@pytest.mark.parametrize(
    ("values", "template", "kwargs"),
    [
        ({"actor_train.data_args.template": "qwen2_5"}, None, {}),
        ({"actor_train.data_args.template": "qwen3"}, None, {}),
        ({"actor_train.data_args.template": "chatml"}, "chatml", {}),
        (
            {"actor_train.data_args.template": "qwen3", "actor_train.data_args.enable_thinking": False},
            None,
            {"enable_thinking": False},
        ),
        ({"actor_train.data_args.template": "qwen3_nothink"}, None, {"enable_thinking": False}),
        (
            {"actor_train.data_args.template": "chatml", "global_template": "native_nonthinking"},
            None,
            {"enable_thinking": False},
        ),
    ],
)
def test_a_chat_template_of_roll_is_the_tokenizers_own_unless_it_says_otherwise(
    values: dict[str, Any], template: str | None, kwargs: dict[str, Any]
) -> None:
    model = config_of("roll", ROLL_GUIDE | values).model
    assert (model.chat_template, model.chat_template_kwargs) == (template, kwargs)
