"""TRL's defaults in earlier versions, and the fields that identify an older file."""

from collections.abc import Mapping
from typing import Any

from shoal.translate.shared.draft import Draft, Source

FEBRUARY, MAY, DECEMBER = "2025-02", "2025-05", "2025-12"
_DECEMBER: dict[str, Any] = {"max_prompt_length": 512, "max_completion_length": 256, "use_bias_correction_kl": False}
_MAY = _DECEMBER | {
    "loss_type": "bnpo",
    "vllm_importance_sampling_correction": False,
    "gradient_checkpointing": False,
    "logging_steps": 500,
}
DEFAULTS_AS_OF: Mapping[str, Mapping[str, Any]] = {
    FEBRUARY: _MAY | {"loss_type": "grpo", "beta": 0.04, "temperature": 0.9},
    MAY: _MAY,
    DECEMBER: _DECEMBER,
}
"""Defaults of TRL 0.15, 0.18 and 0.26 that differ from the defaults in the table."""

OLDEST = dict.fromkeys(("vllm_device", "vllm_dtype", "vllm_max_model_len", "vllm_enable_prefix_caching"), FEBRUARY)
OLDER = dict.fromkeys(("max_prompt_length", "vllm_guided_decoding_regex", "wandb_log_unique_prompts"), DECEMBER)
"""Fields that TRL no longer has, each with a month in which TRL had the field."""


def note_version(source: Source, draft: Draft) -> None:
    """Notes a version that is assumed because of a field that TRL no longer has."""
    spelled = source.spellings()
    if source.since.endswith(DECEMBER) and (gone := sorted(spelled & OLDER.keys())):
        draft.notes.append(
            f"{gone[0]}: TRL 1.0 has no such field, so the defaults are those of 0.26, {DECEMBER}; a file for TRL 0.18 "
            f"to 0.22 needs --as-of {MAY} (no correction by vLLM's log-probabilities), an earlier file --as-of "
            f"{FEBRUARY} (beta 0.04, temperature 0.9)"
        )
    if source.since.endswith(FEBRUARY) and (gone := sorted(spelled & OLDEST.keys())):
        draft.notes.append(
            f"{gone[0]}: TRL 0.18 has no such field, so the defaults are those of 0.15, {FEBRUARY} (beta 0.04, "
            "temperature 0.9, loss_type grpo); for 0.16 and 0.17, write loss_type bnpo into the source"
        )
