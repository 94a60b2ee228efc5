"""Tests that every field of TRL 1.16, of transformers' Trainer and of peft's LoRA is accounted for."""

import dataclasses

import pytest
from transformers import TrainingArguments

from shoal.translate import SYSTEMS
from tests.support.translations import config_of, translate_values

GRPO_CONFIG = """
learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32
remove_unused_columns num_generations num_generations_eval max_completion_length ds3_gather_for_generation
shuffle_dataset pad_to_multiple_of generation_batch_size steps_per_generation temperature top_p top_k min_p
generation_kwargs chat_template_kwargs repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl
vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port
vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size beta
num_iterations epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos
vespo_k_neg vespo_lambda_neg importance_sampling_level reward_weights multi_objective_aggregation scale_rewards
loss_type mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile
entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min off_policy_mask_threshold use_bias_correction_kl
log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo
use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged
vllm_importance_sampling_cap
"""
MODEL_CONFIG = """
model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha lora_dropout
lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora load_in_8bit
load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage
"""
LORA_CONFIG = """
r target_modules exclude_modules lora_alpha lora_dropout bias use_rslora modules_to_save init_lora_weights
layers_to_transform rank_pattern alpha_pattern use_dora task_type inference_mode target_parameters
"""


@pytest.mark.parametrize("system", ["trl", "unsloth"])
def test_every_field_of_a_script_has_a_row_with_a_target_or_a_reason(system: str) -> None:
    known = SYSTEMS[system].rows
    inherited = {field.name for field in dataclasses.fields(TrainingArguments) if not field.name.startswith("_")}
    names = {*GRPO_CONFIG.split(), *MODEL_CONFIG.split(), *inherited}
    names |= {f"LoraConfig.{name}" for name in LORA_CONFIG.split()}
    missing = [name for name in sorted(names) if name not in known or not known[name].fate]
    assert missing == [] and len(names) > 180


def test_peft_chooses_layers_that_no_field_names() -> None:
    result = translate_values("trl", {"use_peft": True, "max_steps": 5})
    assert result.values["learner"]["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert any("peft's default" in note for note in result.notes)


def test_a_4_bit_model_without_adapters_is_refused() -> None:
    (refusal,) = translate_values("trl", {"load_in_4bit": True, "max_steps": 5}).blocking
    assert refusal.name == "load_in_4bit" and "train adapters on it" in refusal.reason


def test_a_4_bit_configuration_of_transformers_has_its_own_default_type() -> None:
    flags = {"use_peft": True, "max_steps": 5, "BitsAndBytesConfig.load_in_4bit": True}
    given = flags | {"from_pretrained.quantization_config": ["BitsAndBytesConfig(load_in_4bit=True)"]}
    assert config_of("trl", given).learner.lora.quantization == "fp4"
    (refusal,) = translate_values("trl", given | {"from_pretrained.quantization_config": ["quantized"]}).blocking
    assert "BitsAndBytesConfig" in refusal.reason
