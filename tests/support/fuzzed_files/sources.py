"""Launch scripts and settings of other systems, to begin from."""

import json

_BASH = rb"""#!/usr/bin/env bash
set -euo pipefail
source ./common.sh
MODEL=${MODEL:-"org/model"}
export NNODES=2 LENGTH=$((1024 * 8)) NAME=run_$(date +%Y)
declare -a DATA=("a.parquet" 'b c.parquet')
if [ "$NNODES" -gt 1 ] && [[ $MODEL == org/* ]]; then
    LR=1e-6
elif [ -z "$LR" ]; then LR=2e-6; else LR=3e-6; fi
for seed in 1 2 3; do echo $seed; done
case "$MODEL" in
    org/*) SIZE=7 ;;
    *) SIZE=1 ;;
esac
train() { local n=$1; echo "${n%.*}" "${DATA[@]}"; }
cat <<EOF > out.txt
learning_rate=$LR
EOF
"""
_YAML = b"""defaults:
  - base
  - _self_
model: &model {path: org/model, dtype: bfloat16}
other: *model
rollout_batch_size: 64
num_return_sequences_in_group: 8
prompt_length: 2048
response_length: 4096
learning_rate: 1.0e-6
num_generations: 8
model_name_or_path: org/model
dataset_name: org/data
merged:
  <<: *model
  name: ${oc.env:HOME}/x
actor_train:
  training_args: {learning_rate: 1.0e-6, gradient_accumulation_steps: 32, warmup_steps: 20}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 1}
  device_mapping: list(range(0,16))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [deepmath_103k, aime]
data:
  train_files: [a.parquet]
  max_prompt_length: 512
algorithm: {adv_estimator: grpo, kl_ctrl: {kl_coef: 0.001}}
actor_rollout_ref: {rollout: {n: 8}, model: {path: org/model}}
trainer: {total_training_steps: 20}
"""
_PYTHON = b'''"""Train."""
import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel

max_seq_length = 1024
lora_rank = 2 ** 5

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="org/model", max_seq_length=max_seq_length, load_in_4bit=True, fast_inference=True,
)
model = FastLanguageModel.get_peft_model(model, r=lora_rank, target_modules=["q_proj", "v_proj"], lora_alpha=lora_rank)
dataset = load_dataset("org/data", split="train").map(lambda row: {"prompt": row["question"]})

def reward(completions, **kwargs):
    return [float("42" in completion[0]["content"]) for completion in completions]

args = GRPOConfig(
    learning_rate=5e-6, num_generations=8, max_prompt_length=256, max_completion_length=max_seq_length - 256,
    max_steps=250, beta=0.0, temperature=1.0, per_device_train_batch_size=4 * 2, loss_type="dapo",
    output_dir=f"out/{lora_rank}", report_to="none", **{"seed": 1},
)
if __name__ == "__main__":
    trainer = GRPOTrainer(model=model, args=args, train_dataset=dataset, reward_funcs=[reward])
    trainer.train()
'''
_STARTS = {
    "open-instruct": b"""
uv run python mason.py --cluster ai2/jupiter --gpus 8 -- source configs/x.sh \\&\\& python open_instruct/grpo_fast.py \\
    --exp_name $NAME --beta 0.0 --num_samples_per_prompt_rollout 16 --num_unique_prompts_rollout 32 \\
    --dataset_mixer_list org/data 1.0 --max_token_length 2048 --response_length $LENGTH --pack_length 16384 \\
    --model_name_or_path $MODEL --apply_verifiable_reward true --temperature 1.0 --learning_rate $LR \\
    --total_episodes 10_000 --deepspeed_stage 3 --num_learners_per_node 4 4 --with_tracking "$@"
""",
    "trl": b"""
accelerate launch --config_file zero3.yaml --num_processes 8 -m trl grpo --model_name_or_path $MODEL \\
    --dataset_name org/data --learning_rate $LR --num_generations 8 --max_completion_length $LENGTH \\
    --reward_funcs accuracy_reward --use_peft --lora_r 16 --max_steps 100 2>&1 | tee log.txt
""",
    "verl": b"""
python3 -m verl.trainer.main_ppo data.train_files="${DATA[@]}" data.max_response_length=${LENGTH} \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo \\
    +actor_rollout_ref.model.override_config.attention_dropout=0. trainer.total_training_steps=20 $@
""",
    "roll": b"""
python examples/start_rlvr_pipeline.py --config_path qwen --config_name rlvr
""",
    "unsloth": b"""
python train.py --learning_rate 5e-6
""",
}


def _notebook(code: bytes) -> bytes:
    lines = code.decode().splitlines(keepends=True)
    cells = [
        {"cell_type": "markdown", "source": ["# GRPO"]},
        {"cell_type": "code", "source": ["%%capture\n", "!pip install unsloth\n", "import os\n"]},
        {"cell_type": "code", "source": lines},
        {"cell_type": "code", "source": "".join(lines[:5])},
    ]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode()


def _json() -> bytes:
    import yaml

    return json.dumps(yaml.safe_load(_YAML)).encode()


SOURCES: dict[object, tuple[bytes, ...]] = {
    ".sh": tuple(_BASH + start for start in _STARTS.values()),
    ".yaml": (_YAML,),
    ".json": (_json(),),
    ".py": (_PYTHON,),
    ".ipynb": (_notebook(_PYTHON),),
    **{(system, ".sh"): (_BASH + start,) * 3 for system, start in _STARTS.items()},
}
"""By suffix; and by system and suffix those that the system starts with, which count more."""
