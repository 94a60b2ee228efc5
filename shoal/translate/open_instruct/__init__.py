"""open-instruct (allenai/open-instruct): grpo_fast.py and grpo.py."""

import re
from typing import Any

from shoal.translate.open_instruct.checkout import read_checkout
from shoal.translate.open_instruct.compose import compose
from shoal.translate.open_instruct.episodes import EPISODES
from shoal.translate.open_instruct.fields import (
    DATA,
    EARLIER,
    ENGINE_AND_MODEL,
    EXPERIMENT,
    LATER,
    OUTSIDE,
    PLACEMENT,
    REWARD,
    TRACKING,
)
from shoal.translate.open_instruct.reward import JUDGE_ADDRESS
from shoal.translate.shared.system import System

DEFAULTS_AS_OF: dict[str, dict[str, Any]] = {
    "2026-02": {
        "seed": 1,
        "temperature": 0.7,
        "async_steps": 1,
        "inflight_updates": False,
        "clip_higher": 0.2,
        "truncated_importance_sampling_ratio_cap": 0.0,
        "advantage_normalization_type": "standard",
        "fused_optimizer": False,
        "checkpoint_state_freq": -1,
        "dataset_mixer_eval_list": ["ai2-adapt-dev/rlvr_gsm8k_zs", "1.0"],
    },
    "2026-08": {},
}
"""The defaults that differ from the table of fields, by month. The table describes 2026-08."""

OPEN_INSTRUCT = System(
    name="open-instruct",
    table=(
        *EXPERIMENT,
        *TRACKING,
        *PLACEMENT,
        *OUTSIDE,
        *EARLIER,
        *DATA,
        *REWARD,
        *ENGINE_AND_MODEL,
        *LATER,
        *EPISODES,
    ),
    compose=compose,
    implied={"learner.adam_beta2": (0.999, "open-instruct's AdamW is torch's")},
    programs=(re.compile(r"grpo\w*\.py$"),),
    calls=("ExperimentConfig", "GRPOExperimentConfig", "StreamingDataLoaderConfig", "VLLMConfig", "ModelConfig"),
    parts={
        **{name: {} for name in ("args", "tokenizer_config", "model_config", "dataset_config")},
        "eval_dataset_config": {
            "dataset_mixer_list": "dataset_mixer_eval_list",
            "dataset_mixer_list_splits": "dataset_mixer_eval_list_splits",
        },
    },
    model_field="model_name_or_path",
    defaults_as_of=DEFAULTS_AS_OF,
    last_month_of={"local_rollout_batch_size": "2026-02"},
    read_checkout=read_checkout,
    environment=(JUDGE_ADDRESS,),
)
