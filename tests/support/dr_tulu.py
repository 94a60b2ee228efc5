"""The script of open-instruct that trains with DR Tulu's tools: what it says, in flags."""

import json
import shlex

SCRIPT = "scripts/train/debug/tools/dr_tulu_parser_debug.sh"
_FLAGS = """
    --dataset_mixer_list hamishivi/tulu_3_rewritten_100k 1.0 --dataset_mixer_list_splits train
    --dataset_mixer_eval_list hamishivi/tulu_3_rewritten_100k 16 --dataset_mixer_eval_list_splits train
    --max_prompt_token_length 2048 --response_length 2048 --pack_length 4096 --per_device_train_batch_size 1
    --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 4 --model_name_or_path Qwen/Qwen3-1.7B
    --apply_verifiable_reward true --temperature 0.7 --ground_truths_key ground_truth --learning_rate 3e-7
    --total_episodes 200 --deepspeed_stage 3 --num_epochs 1 --num_learners_per_node 1 --vllm_tensor_parallel_size 1
    --beta 0.01 --seed 3 --local_eval_every 1 --vllm_sync_backend gloo --single_gpu_mode
    --vllm_gpu_memory_utilization 0.3 --save_traces --vllm_enforce_eager --gradient_checkpointing
    --system_prompt_override_file scripts/train/debug/tools/dr_tulu_system_prompt.txt
    --tools dr_agent_mcp --tool_parser dr_tulu --max_tool_calls 5 --pass_tools_to_chat_template false
    --push_to_hub false
"""


def script_flags(port: int = 8000) -> list[str]:
    """Returns the flags, for an MCP server at a port of this machine."""
    settings = {
        "tool_names": "snippet_search,google_search,browse_webpage",
        "parser_name": "v20250824",
        "host": "0.0.0.0",
        "port": port,
    }
    return [*shlex.split(_FLAGS), "--tool_configs", json.dumps(settings)]
