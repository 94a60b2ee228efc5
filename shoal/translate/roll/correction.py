"""Translates ROLL's correction of the gap between engine and learner, by current or older fields."""

from collections.abc import Mapping
from typing import Any

from shoal.translate.roll.fields import OLDER_FILTERS
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.field import Unfit

_FIELD = "train_infer_correction"
_LEVELS = {"token": "token", "sequence": "sequence_sum", "geometric": "sequence_mean"}


def compose_correction(source: Source, draft: Draft) -> None:
    """Sets importance weights and filters."""
    try:
        _weigh(source, draft)
    except Unfit as error:
        weight = source[f"{_FIELD}.is_weight.weight_type"]
        draft.refuse(f"{_FIELD}.is_weight", weight, str(error), cure="correction.weight")
    try:
        tests = [*_filters(source), *_older_filters(source)]
    except Unfit as error:
        draft.refuse(f"{_FIELD}.filters", source[f"{_FIELD}.filters"], str(error), cure="correction.filters")
        return
    if tests:
        older = (f"train_infer_{name}_mask" for name in OLDER_FILTERS)
        names = [name for name in (f"{_FIELD}.filters", *older) if source.is_set(name)]
        draft.set("correction.filters", tests, source.origin(*names))


def _weigh(source: Source, draft: Draft) -> None:
    prefix, older = f"{_FIELD}.is_weight", "use_rollout_importance_sampling_ratio"
    level, bound = source[f"{prefix}.weight_type"], source[f"{prefix}.upper_bound"]
    options = [f"{prefix}.{name}" for name in ("weight_type", "upper_bound", "detach")]
    older_bound = "rollout_importance_sampling_ratio_upper_bound"
    if not source[f"{prefix}.enabled"]:
        source.note_unused(*options, why=f"changes nothing without {prefix}.enabled")
    elif level not in _LEVELS:
        raise Unfit(f"Shoal supports only {', '.join(_LEVELS)}")
    elif not source[f"{prefix}.detach"]:
        raise Unfit("Shoal's weights have no gradient: set detach to true")
    if source[older]:
        level, bound = "token", source[older_bound]
    else:
        source.note_unused(older_bound, why=f"changes nothing without {older}")
    if not source[f"{prefix}.enabled"] and not source[older]:
        return
    draft.set("correction.weight", level, source.origin(f"{prefix}.enabled", f"{prefix}.weight_type", older))
    draft.set("correction.weight_high", bound or 0.0, source.origin(older_bound if source[older] else options[1]))


def _filters(source: Source) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = []
    rules = source[f"{_FIELD}.filters"] or []
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise Unfit("a list of tables is expected")
    for rule in rules:
        if not rule.get("enabled", False):
            continue
        level = rule.get("agg_type", "token")
        if level not in _LEVELS:
            raise Unfit(f"agg_type {level} must be one of {', '.join(_LEVELS)}")
        if rule.get("ratio_enabled", True):
            tests.append(_test("ratio", _LEVELS[level], rule.get("ratio_low", 0.8), rule.get("ratio_high", 1.2)))
        if rule.get("diff_enabled", False):
            if level != "token":
                raise Unfit("diff_enabled requires agg_type = token, since it compares probabilities of single tokens")
            low, high = rule.get("diff_low", -0.2), rule.get("diff_high", 0.2)
            tests.append(_test("probability_difference", "token", low, high))
    return tests


def _older_filters(source: Source) -> list[dict[str, Any]]:
    tests = []
    for name in OLDER_FILTERS:
        bounds = [f"train_infer_{name}_threshold_{end}" for end in ("low", "high")]
        low, high = (source[bound] for bound in bounds)
        if not source[f"train_infer_{name}_mask"]:
            source.note_unused(*bounds, why=f"changes nothing without train_infer_{name}_mask")
        elif name.endswith("_seq"):
            raise Unfit(f"train_infer_{name}_mask is not translated: give its filter in {_FIELD}.filters instead")
        else:
            statistic = "ratio" if name == "ratio" else "probability_difference"
            tests.append(_test(statistic, "token", low, high))
    return tests


def _test(statistic: str, level: str, low: float, high: float) -> dict[str, Any]:
    """Returns a filter. A token that fails it leaves the divisor too, as it leaves ROLL's response_mask."""
    return {"statistic": statistic, "level": level, "low": low, "high": high, "reject": True}
