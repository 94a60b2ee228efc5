"""Defaults of open-instruct that were different at other times."""

from typing import Any

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
"""Month -> the defaults that differ from the table of fields, which describes 2026-08."""
