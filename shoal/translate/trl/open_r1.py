"""Hugging Face's open-r1: reward functions by name, with their settings, and the version of TRL that open-r1 needs."""

from collections.abc import Collection, Mapping
from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.field import Field, Unfit, composed, ignored, rows
from shoal.translate.trl.versions import MAY

ACCURACY = "math"
"""The verifier that replaces open-r1's accuracy rewards."""
COSINE = {
    "max_value_correct": "correct_short",
    "min_value_correct": "correct_long",
    "min_value_wrong": "wrong_short",
    "max_value_wrong": "wrong_long",
}
"""Fields of `reward.cosine`, by the parameters of open-r1's cosine rewards."""
_CODE = "a setting of open-r1's rewards for programs, which are refused"
FIELDS: list[Field] = rows(
    ignored(
        "code_eval_test_batch_size code_eval_scoring_mode parallel_code_exec_per_proc code_provider ioi_provider "
        "e2b_router_url morph_router_url",
        _CODE,
    ),
    composed("code_language", "text", "python", "reward.format", why="of open-r1's code_format"),
    composed("cosine_min_value_wrong", "number", 0.0, "reward.cosine", why="of open-r1's cosine"),
    composed("cosine_max_value_wrong", "number", -0.5, "reward.cosine", why="of open-r1's cosine"),
    composed("cosine_min_value_correct", "number", 0.5, "reward.cosine", why="of open-r1's cosine"),
    composed("cosine_max_value_correct", "number", 1.0, "reward.cosine", why="of open-r1's cosine"),
    composed("cosine_max_len", "integer", 1000, "reward.cosine", why="of open-r1's cosine, in characters"),
    composed("max_completion_len", "integer", 16384, "reward.overlong", why="of open-r1's soft_overlong_punishment"),
    composed("soft_punish_cache", "integer", 4096, "reward.overlong", why="of open-r1's soft_overlong_punishment"),
    composed("repetition_n_grams", "integer", 3, "reward.repetition", why="of open-r1's repetition_penalty"),
    composed("repetition_max_penalty", "number", -1.0, "reward.repetition", why="of open-r1's repetition_penalty"),
)
"""Fields of open-r1's reward functions."""

_ITS_OWN = (
    "benchmarks",
    "callbacks",
    "dataset_configs",
    "dataset_prompt_column",
    "hub_model_revision",
    "overwrite_hub_revision",
    "push_to_hub_revision",
    "system_prompt",
    *(row.name for row in FIELDS),
)
LAST_MONTH_OF = dict.fromkeys(_ITS_OWN, MAY)
"""Fields that only open-r1's recipes have. The value is the month of TRL 0.18, which open-r1 requires."""

FUNCTIONS_BY_DEFAULT = ["accuracy", "format", "tag_count"]
_REFUSED = {
    "length": "compares the lengths of all completions that a device scores together; Shoal only has reward.length, a "
    "penalty for a completion's own length",
    **dict.fromkeys(
        ("code", "binary_code", "ioi_code", "cf_code"),
        "runs programs by E2B, Morph or Piston, with its own columns: give data with the verifier code_stdio",
    ),
}


def note_settings(functions: Collection[str], source: Source, draft: Draft) -> None:
    """Notes settings whose reward function is not used, and how Shoal's cosine reward differs from open-r1's."""
    if "cosine" in functions:
        draft.notes.append("cosine: beyond cosine_max_len the value stays the same; in open-r1 it rises again")
    for row in FIELDS:
        function = row.why.partition("open-r1's ")[2].partition(",")[0]
        if row.composed and function not in functions:
            source.note_unused(row.name, why=f"only the reward function {function} reads it")


def is_open_r1(source: Source) -> bool:
    return not source.spellings().isdisjoint(_ITS_OWN)


def open_r1_part(name: str, weight: float, source: Source) -> dict[str, Any] | None:
    """Returns the fields of [reward] for one function by its name in open-r1; None for any other name.

    Raises `Unfit` for a function without a counterpart.
    """
    if name in _REFUSED:
        raise Unfit(_REFUSED[name])
    match name:
        case "accuracy":
            return {"weights": {ACCURACY: weight}}
        case "format":
            return {"format": {"kind": "think_answer", "mode": "add", "value": weight}}
        case "code_format":
            required = {"kind": "think_answer", "mode": "add", "value": weight}
            return {"format": required | {"code_language": source["code_language"]}}
        case "tag_count":
            return {"style": {"tags": weight}}
        case "reasoning_steps":
            return {"style": {"steps": weight}}
        case "soft_overlong_punishment":
            return overlong(weight, source["max_completion_len"], source["soft_punish_cache"])
        case "repetition_penalty":
            most, size = source["repetition_max_penalty"], source["repetition_n_grams"]
            return {"repetition": {"max_penalty": most * weight, "ngram_size": size, "unit": "words"}}
        case "cosine":
            values = {theirs: source[f"cosine_{theirs}"] for theirs in COSINE}
            return cosine(weight, {"max_length_characters": source["cosine_max_len"]}, values)
    return None


def overlong(weight: float, limit: int, buffer: int) -> dict[str, Any]:
    """Returns the fields of [reward] for DAPO's soft punishment, in tokens."""
    return {"overlong": {"factor": weight, "max_length_tokens": limit, "buffer_tokens": buffer}}


def cosine(weight: float, limit: Mapping[str, int], values: Mapping[str, float]) -> dict[str, Any]:
    """Returns the fields of [reward] for a cosine by length. `limit` has Shoal's names, `values` the peer's."""
    return {"cosine": {"factor": weight, **limit, **{COSINE[name]: value for name, value in values.items()}}}
