"""The scripts of open-instruct that train with tools: what each says, in flags."""

import json
import shlex

from shoal.config import RunConfig, parse_config
from shoal.translate import translate_arguments

_EACH = "--per_device_train_batch_size 1 --num_epochs 1 --gradient_checkpointing --save_traces --push_to_hub false"
_ONE_GPU = f"""{_EACH} --single_gpu_mode --num_learners_per_node 1 --vllm_tensor_parallel_size 1
    --vllm_sync_backend gloo --vllm_gpu_memory_utilization 0.3 --vllm_enforce_eager"""
_EIGHT_GPUS = f"""{_EACH} --deepspeed_stage 2 --vllm_tensor_parallel_size 1 --beta 0.0 --seed 42 --temperature 1.0
    --inflight_updates True --vllm_enable_prefix_caching --with_tracking --max_prompt_token_length 2048"""
_CODE = "https://open-instruct-tool-server-10554368204.us-central1.run.app/execute"
_THREE = f"""--tools python serper_search jina_browse --tool_call_names code search browse
    --tool_configs '{json.dumps({"api_endpoint": _CODE, "timeout": 3})}' '{{}}' '{{}}'"""
_TOOLS_TEST = """--dataset_mixer_list hamishivi/tulu_3_rewritten_tools_test 64 --dataset_mixer_list_splits train
    --dataset_mixer_eval_list hamishivi/tulu_3_rewritten_tools_test 4 --dataset_mixer_eval_list_splits train"""
_GAME = "--dataset_mixer_list_splits train --beta 0.01 --seed 42 --deepspeed_stage 2 --learning_rate 3e-7"
_QUESTIONS = f"""{_ONE_GPU} --apply_verifiable_reward true --ground_truths_key ground_truth --temperature 0.7
    --learning_rate 3e-7 --beta 0.01 --local_eval_every 1 --num_samples_per_prompt_rollout 4"""
_QWEN3 = f"""{_QUESTIONS} --model_name_or_path Qwen/Qwen3-1.7B --num_unique_prompts_rollout 16 --total_episodes 200
    --seed 3"""
_SANDBOX = """--dataset_mixer_list allenai/Dolci-RLZero-Math-7B 1.0 --dataset_mixer_list_splits train
    --apply_verifiable_reward true --tools generic_sandbox --max_steps 30 --tool_parser_type vllm_hermes
    --system_prompt_override_file scripts/train/debug/envs/sandbox_lm_system_prompt.txt --no_filter_zero_std_samples"""
_WORDLE = (
    "--dataset_mixer_list hamishivi/rlenv-wordle-nothink 1.0 --dataset_mixer_list_splits train --dataset_skip_cache"
)
_GUESS = f"""{_ONE_GPU} {_GAME} --dataset_mixer_list hamishivi/rlenv-guess-number-nothink 1.0 --temperature 0.7
    --max_prompt_token_length 512 --response_length 1024 --pack_length 1536 --num_unique_prompts_rollout 4
    --num_samples_per_prompt_rollout 2 --model_name_or_path Qwen/Qwen3-0.6B --max_steps 10
    --tool_parser_type vllm_hermes --no_filter_zero_std_samples"""
_LONG = "--max_prompt_token_length 2048 --response_length 2048 --pack_length 4096"
_SHORT = "--max_prompt_token_length 512 --response_length 512 --pack_length 1024"

SCRIPTS = {
    "debug/envs/counter_1gpu.sh": f"""{_ONE_GPU} {_GAME} --dataset_mixer_list hamishivi/rlenv-counter-nothink 1.0
        --max_prompt_token_length 512 --response_length 1024 --pack_length 1536 --num_unique_prompts_rollout 4
        --num_samples_per_prompt_rollout 4 --model_name_or_path Qwen/Qwen3-0.6B --temperature 1.0 --total_episodes 80
        --max_steps 20 --tool_parser_type vllm_hermes --no_filter_zero_std_samples --dataset_skip_cache
        --output_dir output/counter_debug""",
    "debug/envs/guess_number_1gpu.sh": f"{_GUESS} --total_episodes 48 --output_dir output/guess_number_debug",
    "debug/envs/guess_number_beaker.sh": f"{_GUESS} --total_episodes 400 --with_tracking --dataset_skip_cache",
    "debug/envs/sandbox_lm_1gpu.sh": f"""{_ONE_GPU} {_SANDBOX} --max_prompt_token_length 2048 --response_length 8192
        --pack_length 16384 --num_unique_prompts_rollout 4 --num_samples_per_prompt_rollout 2
        --model_name_or_path Qwen/Qwen3-0.6B --temperature 1.0 --learning_rate 1e-6 --total_episodes 80
        --deepspeed_stage 2 --beta 0.0 --seed 42 --pool_size 4 --output_dir output/sandbox_lm_debug""",
    "debug/envs/sandbox_lm_8gpu.sh": f"""{_EIGHT_GPUS} {_SANDBOX} --response_length 30720 --pack_length 32768
        --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 4 --total_episodes 3200
        --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --learning_rate 5e-7 --num_learners_per_node 4
        --vllm_num_engines 4 --async_steps 4 --pool_size 16 --output_dir output/sandbox_lm_8gpu_debug""",
    "debug/envs/wordle_1gpu.sh": f"""{_ONE_GPU} {_GAME} {_WORDLE} --max_prompt_token_length 512 --response_length 2048
        --pack_length 2560 --num_unique_prompts_rollout 4 --num_samples_per_prompt_rollout 4 --total_episodes 80
        --model_name_or_path PrimeIntellect/Qwen3-1.7B-Wordle-SFT --temperature 1.0 --max_steps 20
        --tool_parser_type vllm_hermes --output_dir output/wordle_debug""",
    "debug/envs/wordle_8gpu.sh": f"""{_EIGHT_GPUS} {_WORDLE} --response_length 8192 --pack_length 16384
        --num_unique_prompts_rollout 64 --num_samples_per_prompt_rollout 16 --total_episodes 204800
        --model_name_or_path PrimeIntellect/Qwen3-1.7B-Wordle-SFT --learning_rate 1e-6 --lr_scheduler_type constant
        --num_learners_per_node 2 --vllm_num_engines 6 --async_steps 1 --max_steps 20 --tool_parser_type vllm_hermes
        --reward_aggregator last --advantage_normalization_type centered --output_dir output/wordle_8gpu""",
    "debug/envs/wordle_sandbox_lm_8gpu.sh": f"""{_EIGHT_GPUS} {_WORDLE} --response_length 4096 --pack_length 16384
        --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 4 --total_episodes 204800
        --model_name_or_path PrimeIntellect/Qwen3-1.7B-Wordle-SFT --learning_rate 1e-6 --lr_scheduler_type constant
        --num_learners_per_node 4 --vllm_num_engines 4 --async_steps 1 --use_rho_correction --rho_clamp_upper_bound 5.0
        --tools wordle generic_sandbox --pool_size 16 --max_steps 20 --per_turn_max_tokens 512
        --tool_parser_type vllm_qwen3xml --no_filter_zero_std_samples --reward_aggregator last
        --advantage_normalization_type centered --output_dir output/wordle_sandbox_lm_8gpu
        --system_prompt_override_file scripts/train/debug/envs/wordle_sandbox_lm_system_prompt.txt""",
    "debug/tools/dr_tulu_parser_debug.sh": f"""{_QWEN3} {_LONG} --deepspeed_stage 3 --vllm_num_engines 1
        --dataset_mixer_list hamishivi/tulu_3_rewritten_100k 1.0 --dataset_mixer_list_splits train
        --dataset_mixer_eval_list hamishivi/tulu_3_rewritten_100k 16 --dataset_mixer_eval_list_splits train
        --system_prompt_override_file scripts/train/debug/tools/dr_tulu_system_prompt.txt
        --tools dr_agent_mcp --tool_parser_type dr_tulu --max_steps 5 --pass_tools_to_chat_template false
        --tool_configs '{{"tool_names": "snippet_search,google_search,browse_webpage", "parser_name": "v20250824",
        "host": "0.0.0.0", "port": 8000}}'""",
    "debug/tools/legacy_parser_debug.sh": f"""{_QWEN3} {_SHORT} {_TOOLS_TEST} {_THREE} --deepspeed_stage 2
        --chat_template_name r1_simple_chat_postpend_think_tool_vllm --tool_parser_type legacy --max_steps 5
        --verbose true""",
    "debug/tools/mcp_weather_debug.sh": f"""{_QUESTIONS} --dataset_mixer_list hamishivi/wots_the_weather 32
        --dataset_mixer_list_splits train --dataset_mixer_eval_list hamishivi/wots_the_weather 8
        --dataset_mixer_eval_list_splits train --max_prompt_token_length 512 --response_length 1024 --pack_length 1536
        --num_unique_prompts_rollout 8 --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --total_episodes 100
        --deepspeed_stage 2 --seed 42 --tools generic_mcp --tool_parser_type vllm_hermes --max_steps 3 --verbose true
        --tool_configs '{{"server_url": "http://localhost:8765/mcp", "transport": "http", "timeout": 30}}'
        --output_dir output/weather_mcp_debug --dataset_skip_cache""",
    "debug/tools/olmo_3_parser_multigpu.sh": f"""{_SHORT} --per_device_train_batch_size 1 --num_epochs 1
        --dataset_mixer_list hamishivi/tulu_3_rewritten_100k 1.0 --dataset_mixer_list_splits train
        --dataset_mixer_eval_list hamishivi/tulu_3_rewritten_100k 32 --dataset_mixer_eval_list_splits train
        --inflight_updates True --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 4
        --model_name_or_path allenai/Olmo-3-7B-Instruct-SFT --apply_verifiable_reward true --temperature 1.0
        --ground_truths_key ground_truth --sft_messages_key messages --exp_name olmo3_7b_tool_use_test
        --learning_rate 5e-7 --total_episodes 640 --deepspeed_stage 3 --sequence_parallel_size 2 --with_tracking
        --num_learners_per_node 8 --vllm_num_engines 8 --vllm_tensor_parallel_size 1 --beta 0.01 --seed 1
        --local_eval_every 10 --gradient_checkpointing --push_to_hub false --output_dir /output --kl_estimator 2
        --non_stop_penalty False --num_mini_batches 1 --lr_scheduler_type constant --save_freq 100
        --try_launch_beaker_eval_jobs_on_weka False --max_tool_calls 5 --vllm_enable_prefix_caching
        --tools python serper_search --tool_call_names code search --tool_parser_type vllm_olmo3
        --tool_configs '{json.dumps({"api_endpoint": _CODE, "timeout": 3})}' '{{}}'""",
    "debug/tools/qwen3_vllm_hermes_parser_debug.sh": f"""{_QWEN3} {_LONG} {_TOOLS_TEST} {_THREE} --deepspeed_stage 2
        --tool_parser_type vllm_hermes --max_steps 5 --verbose true""",
    "debug/tools/tool_regression_beaker.sh": f"""{_QWEN3} {_LONG} {_TOOLS_TEST} {_THREE} --deepspeed_stage 2
        --async_steps 1 --tool_parser_type vllm_hermes --max_steps 5 --with_tracking""",
}
"""By path below scripts/train."""


def flags_of(script: str) -> list[str]:
    return shlex.split(SCRIPTS[script])


def config_of_script(script: str) -> RunConfig:
    """Translates a script, without what it reads from its own checkout."""
    return parse_config(translate_arguments("open-instruct", flags_of(script), skip=["all"]).values)
