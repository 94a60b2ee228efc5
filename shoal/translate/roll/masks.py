"""ROLL's rules for the groups and completions that a step trains on: masks, filters, additional prompts."""

import math
from collections.abc import Sequence

from shoal.translate.roll.reward_worker import RewardWorker
from shoal.translate.shared.draft import Draft, Origin, Source

_MEAN, _STD = "mean_filter", "std_filter"


def compose_masks(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets masks and filters, and whether other groups replace dropped groups."""
    bounds = {"low": -math.inf, "high": math.inf}
    names: list[str] = []
    for end in bounds:
        name = f"difficulty_{end}_threshold"
        if source["difficulty_mask"]:
            bounds[end] = source[name]
            names.append(name)
        else:
            source.note_unused(name, why="changes nothing without difficulty_mask")
    origin = source.origin("difficulty_mask", *names)
    kind = _filter(workers, bounds, draft)
    if kind == _MEAN:
        origin = Origin(f"{origin.text}, query_filter_config", True)
    if names or kind == _MEAN:
        draft.set("grpo.difficulty_low", bounds["low"] if bounds["low"] >= 0 else None, origin)
        draft.set("grpo.difficulty_high", bounds["high"] if bounds["high"] <= 1 else None, origin)
    threshold = source["error_max_len_threshold"]
    if source["error_max_len_clip"]:
        if threshold < 1e9:
            clip = source.origin("error_max_len_clip", "error_max_len_threshold")
            draft.set("grpo.max_wrong_completion_tokens", math.ceil(threshold), clip)
    else:
        source.note_unused("error_max_len_clip", why="no completion is masked for being long and wrong")
        source.note_unused("error_max_len_threshold", why="changes nothing without error_max_len_clip")
    _refills(kind, source, draft)


def _refills(kind: str, source: Source, draft: Draft) -> None:
    """Sets whether groups that a filter drops are replaced."""
    additional, dynamic = source["is_use_additional_prompts"], source["dynamic_sampling"]
    if kind or dynamic:
        origin = Origin("query_filter_config", True) if kind else source.origin("dynamic_sampling")
        draft.set("grpo.active_sampling", True, origin)
        return
    if additional:
        source.note_unused(
            "is_use_additional_prompts",
            why="ROLL drops no group without a query_filter_config; Shoal trains on groups in their order of issue",
        )
    draft.set("grpo.active_sampling", False, source.origin("is_use_additional_prompts"))
    draft.set("grpo.keep_zero_signal", True, Origin("ROLL counts groups of equal rewards in the divisor", False))


def _filter(workers: Sequence[RewardWorker], bounds: dict[str, float], draft: Draft) -> str:
    """Narrows the bounds by a filter of means. Returns the kind of filter that all domains share, or refuses it."""
    settings = [worker.query_filter for worker in workers]
    kinds = {kind for kind, _ in settings}
    if kinds <= {"no_filter"}:
        return ""
    domain = next(worker.domain for worker in workers if worker.query_filter[0] != "no_filter")
    where = f"rewards.{domain}.query_filter_config"
    if any(setting != settings[0] for setting in settings):
        choice = "choose it with grpo.active_sampling and grpo.difficulty_*"
        reason = f"Shoal drops groups of all domains by one rule: {choice}"
        draft.refuse(where, " and ".join(sorted(kinds)), reason, cure="grpo.active_sampling")
        return ""
    kind, options = settings[0]
    if kind == _MEAN and all(worker.is_share for worker in workers):
        bounds["low"] = max(bounds["low"], options.get("threshold_down", -1.0))
        bounds["high"] = min(bounds["high"], options.get("threshold_up", math.inf))
        return kind
    if kind == _STD and options.get("std_threshold", -1.0) <= 0:
        return kind if options.get("std_threshold", -1.0) == 0 else ""
    known = "by the share of correct completions (mean_filter) or for equal rewards (std_filter with std_threshold 0)"
    draft.refuse(where, f"{kind} {options}", f"Shoal drops groups only {known}", cure="grpo.active_sampling")
    return ""
