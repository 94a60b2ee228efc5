"""verl's rollout correction: importance weights and rejection."""

import re
from typing import Any

from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.shared.field import Unfit
from shoal.translate.verl.names import ACTOR, trainer_of

_FIELD = "algorithm.rollout_correction"
_LEVELS = {"token": "token", "seq_sum": "sequence_sum", "seq_mean": "sequence_mean", "seq_max": "sequence_max"}
_STATISTICS = {"k1": "ratio", "k2": "k2", "k3": "k3"}


_BYPASS = f"{_FIELD}.bypass_mode"


def bypasses(source: Source) -> bool:
    """Returns whether the engine's log-probabilities replace the policy's, as asynchronous trainers do by default."""
    return bool(source[_BYPASS]) if source.is_set(_BYPASS) else trainer_of(source["program"]) != "ppo"


def bypass_origin(source: Source) -> Origin:
    """Returns the origin of the field that decides `bypasses`."""
    is_own = trainer_of(source["program"]) != "ppo" and not source.is_set(_BYPASS)
    return source.origin("program" if is_own else _BYPASS)


def compose_correction(source: Source, draft: Draft) -> None:
    """Sets importance weights (`rollout_is`) and rejection (`rollout_rs`)."""
    if bypasses(source):
        _bypass(source, draft)
        return
    try:
        _weigh(source, draft)
    except Unfit as error:
        threshold = source[f"{_FIELD}.rollout_is_threshold"]
        draft.refuse(f"{_FIELD}.rollout_is_threshold", threshold, str(error), cure="correction.weight_high")
    try:
        _reject(source, draft)
    except Unfit as error:
        options = source[f"{_FIELD}.rollout_rs"]
        draft.refuse(f"{_FIELD}.rollout_rs", options, str(error), cure="correction.filters")


def _bypass(source: Source, draft: Draft) -> None:
    """Notes the weights, which the clipped ratio to the engine replaces; refuses rejection."""
    names = [f"{_FIELD}.{name}" for name in ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")]
    why = "with bypass_mode verl measures these weights, but does not train with them"
    source.note_unused(*names, f"{ACTOR}.tis_imp_ratio_cap", why=why)
    name, bounds = f"{_FIELD}.rollout_rs", f"{_FIELD}.rollout_rs_threshold"
    if source[name] is not None:
        reason = "needs bypass_mode=false: Shoal's filters compare the engine with the learner before its first update"
        draft.refuse(name, source[name], reason, cure="loss.baseline")
    source.note_unused(bounds, why="changes nothing without rollout_rs, which needs bypass_mode=false")


def _weigh(source: Source, draft: Draft) -> None:
    level, threshold = source[f"{_FIELD}.rollout_is"], source[f"{_FIELD}.rollout_is_threshold"]
    cap = source[f"{ACTOR}.tis_imp_ratio_cap"]
    if cap > 0 and level is None:
        draft.set("correction.weight", "token", source.origin(f"{ACTOR}.tis_imp_ratio_cap"))
        source.copy(f"{ACTOR}.tis_imp_ratio_cap", "correction.weight_high")
    normalized = f"{_FIELD}.rollout_is_batch_normalize"
    if level is None:
        source.note_unused(normalized, f"{_FIELD}.rollout_is_threshold", why="changes nothing without rollout_is")
        return
    source.copy(normalized, "correction.normalize")
    if level not in ("token", "sequence"):
        draft.refuse(f"{_FIELD}.rollout_is", level, "Shoal supports only token and sequence", cure="correction.weight")
        return
    source.copy(f"{_FIELD}.rollout_is", "correction.weight")
    low, high = _bounds(threshold)
    origin = source.origin(f"{_FIELD}.rollout_is_threshold")
    draft.set("correction.weight_high", high, origin)
    if low is not None:
        # Two bounds mean IcePop: a token outside of them is dropped, not clamped.
        test = {"statistic": "ratio", "level": "token" if level == "token" else "sequence_sum", "low": low}
        draft.set("correction.filters", [test | {"high": high}], origin)


def _reject(source: Source, draft: Draft) -> None:
    """Sets a filter for each option; a token must pass all of them, as in verl."""
    names, limits = source[f"{_FIELD}.rollout_rs"], source[f"{_FIELD}.rollout_rs_threshold"]
    if names is None:
        return
    options = list(dict.fromkeys(_items(names)))
    if limits is None:
        raise Unfit("needs bounds: set rollout_rs_threshold")
    bounds = _items(limits)
    if len(bounds) == 1:
        bounds *= len(options)
    if len(bounds) != len(options):
        given = f"has {len(options)} options and rollout_rs_threshold {len(bounds)} bounds"
        raise Unfit(f"{given}: give one bound per option, or one for all")
    tests = [_test(option, bound) for option, bound in zip(options, bounds, strict=True)]
    filters = [*draft.values.get("correction.filters", []), *tests]
    draft.set("correction.filters", filters, source.origin(f"{_FIELD}.rollout_rs", f"{_FIELD}.rollout_rs_threshold"))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.strip("[]").replace("'", "").split(",") if item.strip()]


def _test(option: str, bound: str) -> dict[str, Any]:
    match = re.fullmatch(r"(token|seq_sum|seq_mean|seq_max)_(k[123])", option)
    if match is None or option == "seq_max_k1":
        known = "token, seq_sum, seq_mean with _k1, _k2, _k3, and seq_max with _k2, _k3"
        raise Unfit(f"{option!r} is unknown: Shoal supports only {known}")
    low, high = _bounds(bound)
    if match[2] == "k1":
        # verl bounds the inverse of the ratio; a missing lower bound is the inverse of the upper one.
        low, high = 1 / high, high if low is None else 1 / low
    elif low is not None:
        raise Unfit(f"{option} has only an upper bound, but {bound!r} gives two: leave the first one out")
    test = {"statistic": _STATISTICS[match[2]], "level": _LEVELS[match[1]], "high": high, "reject": True}
    return test if low is None else test | {"low": low}


def _bounds(text: str) -> tuple[float | None, float]:
    """Reads "0.5_2.0" as both bounds, and "2.0" as the upper bound. Raises `Unfit`."""
    low, _, high = str(text).rpartition("_")
    try:
        bounds = (float(low) if low else None), float(high)
    except ValueError:
        raise Unfit(f"{text!r} is not a bound: write 2.0, or 0.5_2.0 for both") from None
    if bounds[1] <= 0 or (bounds[0] is not None and not 0 < bounds[0] < bounds[1]):
        raise Unfit(f"{text!r}: bounds must be above 0, and the lower one below the upper one")
    return bounds
