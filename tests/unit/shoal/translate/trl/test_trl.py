"""Tests of the translation of TRL's settings."""

from pathlib import Path
from typing import Any

import pytest

from shoal.translate import SYSTEMS, translate
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings
from tests.support.translations import config_of, parsed, translate_values, values_at

TRL: dict[str, Any] = {"max_steps": 100}


TEST, LORA = "correction.filters.0.", "learner.lora."
FLAGS = {"use_peft": True, "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"], "load_in_4bit": True}
SHOWN = {"log_completions": True, "logging_steps": 6, "num_completions_to_print": 2, "steps_per_generation": 2}
BATCHES = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "steps_per_generation": 8}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # The defaults of trl.
        ({}, {"advantage.scale": "group_std", "advantage.std_ddof": 1, "advantage.std_eps": 1e-4, "kl.coef": 0.0}),
        ({}, {"loss.objective": "ppo_clip", "loss.aggregation": "token-mean", "loss.dual_clip": None}),
        ({}, {"loss.clip_low": 0.2, "loss.clip_high": 0.2, "grpo.max_staleness": 0, "run.num_steps": 100}),
        ({}, {"correction.weight": "sequence", "correction.weight_high": 3.0}),
        ({}, {f"{TEST}level": "sequence_sum", f"{TEST}high": 3.0, f"{TEST}low": None, f"{TEST}reject": False}),
        ({}, {"learner.adam_beta2": 0.999, "learner.lr_scheduler": "linear", "learner.learning_rate": 1e-6}),
        ({}, {"tracking.completions_every_steps": 0, "sampling.top_k": 0}),
        ({"loss_type": "grpo"}, {"loss.objective": "ppo_clip", "loss.aggregation": "seq-mean-token-mean"}),
        ({"loss_type": "dr_grpo"}, {"loss.aggregation": "seq-mean-token-sum-norm", "loss.denominator": None}),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss.objective": "gspo"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss.objective": "cispo", "loss.cispo_cap": 5.0}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss.cispo_lower": False}),
        ({"loss_type": "sapo"}, {"loss.objective": "sapo", "loss.sapo_tau_negative": 1.05}),
        ({"loss_type": "sapo"}, {"loss.sapo_tau_positive": 1.0}),
        ({"loss_type": "vespo", "vespo_k_pos": 1.5}, {"loss.objective": "vespo", "loss.vespo_k_positive": 1.5}),
        ({"loss_type": "luspo"}, {"loss.objective": "luspo", "loss.aggregation": "seq-mean-token-sum"}),
        ({"delta": 1.5, "epsilon_high": 0.28}, {"loss.dual_clip": 1.5, "loss.clip_high": 0.28}),
        ({"top_entropy_quantile": 0.2}, {"loss.top_entropy_share": 0.2}),
        # Generation batches become groups and mini-batches: 100 optimizer steps, 8 a train step.
        (
            BATCHES | {"num_generations": 8, "num_iterations": 2},
            {"grpo.groups_per_step": 16, "grpo.num_mini_batches": 4, "grpo.num_epochs": 2, "run.num_steps": 13},
        ),
        # An optimizer step may span several generation batches.
        (
            {"steps_per_generation": 2, "gradient_accumulation_steps": 8},
            {"grpo.groups_per_step": 8, "grpo.num_mini_batches": 1, "run.num_steps": 100},
        ),
        # Completions are shown as often as TRL logs them, of two optimizer steps each.
        (SHOWN, {"tracking.completions_every_steps": 3, "tracking.num_completions": 2}),
        ({"logging_steps": 6}, {"tracking.completions_every_steps": 0}),
        # The data are those of --set.
        (
            {"system_prompt": "Think.", "dataset_name": "org/x"},
            {"data.sources.0.system_prompt": "Think.", "data.sources.0.dataset": None},
        ),
        (
            {"vllm_max_model_length": 1536, "max_completion_length": 1024},
            {"data.max_prompt_tokens": 512, "generator.max_model_len": 1536},
        ),
        (
            {"top_p": 0.9, "top_k": 20, "min_p": 0.05},
            {"sampling.top_p": 0.9, "sampling.top_k": 20, "sampling.min_p": 0.05},
        ),
        (FLAGS, {f"{LORA}rank": 8, f"{LORA}alpha": 32, f"{LORA}dropout": 0.05, f"{LORA}quantization": "nf4"}),
        (FLAGS, {f"{LORA}target_modules": ["q_proj", "v_proj"]}),
        ({"lora_r": 8}, {f"{LORA}rank": 0}),
        ({"GRPOTrainer.peft_config": ["LoraConfig()"]}, {f"{LORA}rank": 8, f"{LORA}alpha": 8, f"{LORA}dropout": 0.0}),
    ],
)
def test_settings_become_fields(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert values_at(config_of("trl", TRL | values), expected) == expected


def test_built_in_reward_functions_of_trl_become_weighted_verifiers_and_parts() -> None:
    functions = ["accuracy_reward", "trl.rewards.think_format_reward", "get_soft_overlong_punishment(100, 20)"]
    values = TRL | {"dataset_name": "org/math", "reward_funcs": functions, "reward_weights": [1.0, 0.5, 2.0]}
    config = parsed(translate(SYSTEMS["trl"], Settings(values), overrides=["model.path=m"]))
    (data,) = config.data.sources
    assert (data.dataset, data.messages_column, data.verifier) == ("org/math", "prompt", "math")
    assert data.ground_truth_column == "solution"
    assert config.reward.weights == {"math": 1.0}
    assert (config.reward.format.kind, config.reward.format.mode, config.reward.format.value) == ("think", "add", 0.5)
    overlong = config.reward.overlong
    assert (overlong.factor, overlong.max_length_tokens, overlong.buffer_tokens) == (2.0, 100, 20)
    assert not config.advantage.partial_rewards, "parts make one reward"
    alone = config_of("trl", TRL | {"reward_funcs": ["accuracy_reward"]})
    assert alone.reward.weights == {"math": 1.0} and alone.advantage.partial_rewards
    assert (alone.reward.verifiers.math.extraction, alone.reward.verifiers.math.boxed_match_priority) == (["latex"], 0)


def test_the_cosine_reward_of_trl_replaces_the_verifiable_reward() -> None:
    text = "get_cosine_scaled_reward(max_len=200, max_value_correct=2.0)"
    reward = config_of("trl", TRL | {"reward_funcs": [text, "get_repetition_penalty_reward(2)"]}).reward
    assert not reward.apply_verifiable_reward
    assert (reward.cosine.factor, reward.cosine.max_length_tokens, reward.cosine.correct_short) == (1.0, 200, 2.0)
    assert (reward.repetition.ngram_size, reward.repetition.max_penalty) == (2, -1.0)
    script = config_of("trl", TRL | {"reward_funcs": ["accuracy_reward", "get_soft_overlong_punishment"]}).reward
    assert (script.overlong.max_length_tokens, script.overlong.buffer_tokens) == (1280, 256), (
        "the numbers of the trl grpo script"
    )


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"reward_funcs": ["my_reward"]}, "reward_funcs", "reward.custom.NAME.file"),
        ({"reward_funcs": ["reasoning_accuracy_reward"]}, "reward_funcs", "only the text after </think>"),
        ({"reward_funcs": ["lambda completions: [1.0]"]}, "reward_funcs", "reward.custom.NAME.file"),
        ({"reward_funcs": ["get_soft_overlong_punishment(x=1)"]}, "reward_funcs", "has no parameter x"),
        ({"reward_funcs": ["accuracy_reward"], "reward_weights": [1, 2]}, "reward_weights", "(given: 2)"),
        ({"reward_weights": [1.0]}, "reward_weights", "no reward_funcs"),
        (
            {"reward_funcs": ["think_format_reward"], "multi_objective_aggregation": "normalize_then_sum"},
            "multi_objective_aggregation",
            '["math", "think_format"]',
        ),
    ],
)
def test_reward_functions_without_a_counterpart_are_refused_by_name(
    values: dict[str, Any], field: str, message: str
) -> None:
    translation = translate(SYSTEMS["trl"], Settings(TRL | {"dataset_name": "d"} | values), overrides=["model.path=m"])
    refusals = [item for item in translation.blocking if item.name == field]
    assert refusals and message in str(refusals[0]), [str(item) for item in refusals]


def test_a_reward_model_of_trl_is_combined_with_a_format_reward() -> None:
    values = TRL | {"dataset_name": "d", "reward_model_name_or_path": "org/reward"}
    values |= {"reward_funcs": ["think_format_reward"], "reward_weights": [2.0, 0.5]}
    config = parsed(translate(SYSTEMS["trl"], Settings(values), overrides=["model.path=m"]))
    assert (config.reward.model.path, config.data.sources[0].verifier) == ("org/reward", "reward_model")
    assert (config.reward.weights, config.reward.format.value) == ({"reward_model": 2.0}, 0.5)


def test_reward_functions_are_read_from_the_call_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "soft = get_soft_overlong_punishment(max_completion_len=64, soft_punish_cache=16)\n"
        "args = GRPOConfig(max_steps=10, reward_weights=[1.0, 0.1, 1.0])\n"
        "trainer = GRPOTrainer('org/model', [accuracy_reward, mine, soft], args, load())\n"
    )
    values = read_settings(SYSTEMS["trl"], [str(path)]).values
    assert values["GRPOTrainer.model"] == "org/model"
    assert values["GRPOTrainer.reward_funcs"] == [
        "accuracy_reward", "mine", "get_soft_overlong_punishment(max_completion_len=64, soft_punish_cache=16)"
    ]  # fmt: skip
    translation = translate(SYSTEMS["trl"], Settings(values | {"dataset_name": "d"}))
    assert [(refusal.name, refusal.value) for refusal in translation.blocking] == [("reward_funcs", "mine")]
    assert config_of("trl", values).reward.overlong.max_length_tokens == 64, "setting data.sources resolves the refusal"


def test_epochs_over_data_of_unknown_length_need_the_number_of_steps() -> None:
    assert config_of("trl", {"num_train_epochs": 2}).run.total_epochs == 2
    given = translate_values("trl", {"num_train_epochs": 2}, "run.num_steps=7")
    assert (parsed(given).run.num_steps, given.values["run"].get("total_epochs")) == (7, None)
    assert any("num_train_epochs = 2" in note for note in given.notes)


def test_processes_that_the_sizes_of_trl_presume_are_found() -> None:
    sizes = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14}
    result = translate_values("trl", TRL | sizes)
    assert result.values["grpo"]["groups_per_step"] == 32
    assert any("448 completions" in note and "num_processes 7" in note for note in result.notes)


def test_a_share_of_the_steps_between_checkpoints_is_counted() -> None:
    assert config_of("trl", TRL | {"save_steps": 0.1}).checkpoint.every_steps == 10
    notes = translate_values("trl", {"num_train_epochs": 1, "save_steps": 0.1}).notes
    assert any("save_steps = 0.1 " in note for note in notes)


def test_a_token_mean_of_each_device_is_noted() -> None:
    assert any("loss_type = bnpo: TRL" in note for note in translate_values("trl", TRL | {"loss_type": "bnpo"}).notes)


def test_a_context_that_would_cut_completions_off_is_noted() -> None:
    lengths = {"max_prompt_length": 512, "max_completion_length": 1024, "max_steps": 5}
    result = translate_values("trl", lengths | {"vllm_max_model_length": 1024})
    assert "max_model_len" not in result.values["generator"]
    assert any("vllm_max_model_length = 1024 " in note for note in result.notes)
    assert "max_model_len" not in translate_values("unsloth", lengths | {"max_seq_length": 1024}).values["generator"]


def test_a_limit_that_trl_does_not_have_is_noted() -> None:
    assert any("more than 2048" in note for note in translate_values("trl", {"max_steps": 5}).notes)
