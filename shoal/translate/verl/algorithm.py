"""verl's advantage estimators, its KL (in the loss or in the reward), and its policy losses."""

from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.verl.correction import bypass_origin, bypasses
from shoal.translate.verl.names import ACTOR, REFERENCE

_ADVANTAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grpo": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "grpo_vectorized": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "grpo_passk": ("second_best", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "gdpo": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6, "per_verifier": True, "whiten": True}),
    "reinforce_plus_plus": ("none", "none", {"whiten": True}),
    "reinforce_plus_plus_baseline": ("group_mean", "none", {"whiten": True}),
    "rloo": ("leave_one_out", "none", {}),
    "rloo_vectorized": ("leave_one_out", "none", {}),
    "remax": ("greedy", "none", {}),
    "opo": ("length_weighted", "none", {}),
    "gpg": ("group_mean", "nonzero_share", {}),
}
"""Baseline, scale and further options of verl's estimators."""
_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_CLAMPED = ("low_var_kl", "k3")
_MOVING = tuple(f"{REFERENCE}.{name}" for name in ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"))
"""Fields of a reference that follows the policy."""
_OBJECTIVES = {"vanilla": "ppo_clip", "gspo": "gspo", "sapo": "sapo", "geo_mean": "gmpo", "cispo": "cispo"}
_OBJECTIVES |= {"gpg": "policy_gradient", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl"}
_DPPO = {f"clip_ratio_{end}": f"dppo_divergence_{end}" for end in ("low", "high")} | {"clip_ratio_c": "dppo_ratio_cap"}
_SAPO = {"tau_pos": "sapo_tau_positive", "tau_neg": "sapo_tau_negative"}
_BY_SEQUENCE = ("gspo", "sapo", "gmpo")
"""Objectives that verl averages over sequences for every value of loss_agg_mode."""
_OPTIONS: dict[str, dict[str, str]] = {
    "dppo_tv": _DPPO,
    "dppo_kl": _DPPO,
    "sapo": _SAPO,
    "gmpo": {"clip_ratio_low": "gmpo_log_clip_low", "clip_ratio_high": "gmpo_log_clip_high"},
}
"""Shoal's options of single objectives, by verl's names."""


def compose_advantage(source: Source, draft: Draft) -> None:
    """Sets baseline and scale of the advantages."""
    kind, by_std = source["algorithm.adv_estimator"], source["algorithm.norm_adv_by_std_in_grpo"]
    if kind not in _ADVANTAGES:
        draft.refuse("algorithm.adv_estimator", kind, f"must be one of {', '.join(_ADVANTAGES)}; gae needs a critic")
        return
    baseline, scale, options = _ADVANTAGES[kind]
    origin = source.origin("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo")
    draft.set("advantage.baseline", baseline, origin)
    draft.set("advantage.scale", scale if by_std or scale != "group_std" else "none", origin)
    for name, value in options.items():
        draft.set(f"advantage.{name}", value, origin)


def compose_kl(source: Source, draft: Draft) -> None:
    """Sets coefficient, estimator and place of the KL."""
    in_loss, in_reward = source[f"{ACTOR}.use_kl_loss"], source["algorithm.use_kl_in_reward"]
    coef, kind = source[f"{ACTOR}.kl_loss_coef"], source[f"{ACTOR}.kl_loss_type"]
    penalty, control = source["algorithm.kl_penalty"], source["algorithm.kl_ctrl.type"]
    weight, horizon, target = (source[f"algorithm.kl_ctrl.{name}"] for name in ("kl_coef", "horizon", "target_kl"))
    if in_loss and in_reward:
        reason = "the KL goes into the loss (use_kl_loss) or into the reward, not both: choose one"
        draft.refuse("algorithm.use_kl_in_reward", True, reason)
        return
    name = f"{ACTOR}.kl_loss_type" if in_loss else "algorithm.kl_penalty"
    spelled = kind if in_loss else penalty
    plain = spelled.rstrip("+")
    if plain not in _KL and (in_loss or in_reward):
        draft.refuse(name, spelled, f"Shoal supports only {', '.join(_KL)}, and each with + (straight-through)")
        return
    which = [f"{ACTOR}.use_kl_loss"]
    which += [f"{ACTOR}.kl_loss_coef"] if in_loss else []
    which = ["algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"] if in_reward else which
    draft.set("kl.coef", coef if in_loss else weight if in_reward else 0.0, source.origin(*which))
    if not in_loss and not in_reward:
        source.note_unused(*_MOVING, why="no KL is computed")
        return
    _moving_reference(source, draft)
    draft.set("kl.estimator", _KL[plain], source.origin(name))
    if plain in _CLAMPED:
        draft.set("kl.output_clamp", 10.0, source.origin(name))
    if in_loss and spelled.endswith("+"):
        draft.set("kl.gradient", "straight_through", source.origin(name))
    if in_reward:
        draft.set("kl.place", "reward", source.origin("algorithm.use_kl_in_reward"))
        # Other estimators sum the token rewards of a completion before they compare completions.
        level = "token" if source["algorithm.adv_estimator"] in ("reinforce_plus_plus", "remax") else "completion"
        draft.set("kl.reward_level", level, source.origin("algorithm.use_kl_in_reward"))
        if control == "adaptive":
            draft.set("kl.target", target, source.origin("algorithm.kl_ctrl.target_kl"))
            draft.set("kl.horizon", horizon, source.origin("algorithm.kl_ctrl.horizon"))


def _moving_reference(source: Source, draft: Draft) -> None:
    is_on, every, alpha = _MOVING
    if source[is_on]:
        draft.set("kl.reference_update_steps", source[every], source.origin(is_on, every))
        source.copy(alpha, "kl.reference_alpha")
    else:
        source.note_unused(every, alpha, why="changes nothing without sync_ref_model")


def compose_loss(source: Source, draft: Draft) -> None:
    """Sets objective, clipping, aggregation, and the denominator of the ratio."""
    mode, origin = source[f"{ACTOR}.policy_loss.loss_mode"], source.origin(f"{ACTOR}.policy_loss.loss_mode")
    if mode not in _OBJECTIVES:
        draft.refuse(f"{ACTOR}.policy_loss.loss_mode", mode, f"Shoal supports only {', '.join(_OBJECTIVES)}")
        return
    objective = _OBJECTIVES[mode]
    draft.set("loss.objective", objective, origin)
    _clipping(source, draft, objective, mode)
    _options(source, draft, objective, mode)
    if objective == "cispo":
        draft.set("loss.cispo_lower", True, origin)
    if objective in _BY_SEQUENCE:
        _aggregate_by_sequence(source, draft, mode)
    factor = source[f"{ACTOR}.loss_scale_factor"]
    if factor is not None and draft.values.get("loss.aggregation") != "seq-mean-token-sum-norm":
        draft.notes.append(f"actor.loss_scale_factor = {factor:g}: only seq-mean-token-sum-norm divides by it")
    elif factor is not None:
        source.copy(f"{ACTOR}.loss_scale_factor", "loss.denominator")
    draft.set("loss.baseline", "behavior" if bypasses(source) else "proximal", bypass_origin(source))


def _aggregate_by_sequence(source: Source, draft: Draft, mode: str) -> None:
    name, ours = f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"
    draft.set("loss.aggregation", ours, source.origin(f"{ACTOR}.policy_loss.loss_mode"))
    asked = source[name]
    if asked == ours:
        return
    if source.is_set(name):
        draft.notes.append(f"{name} = {asked}: verl's {mode} always uses {ours}")
    if source[f"{ACTOR}.use_kl_loss"] or source[f"{ACTOR}.entropy_coeff"]:
        draft.notes.append(
            f"with {mode}, verl aggregates KL and entropy by {asked}; Shoal aggregates them by {ours}, like the loss"
        )


def _clipping(source: Source, draft: Draft, objective: str, mode: str) -> None:
    base, names = source[f"{ACTOR}.clip_ratio"], [f"{ACTOR}.clip_ratio{end}" for end in ("", "_low", "_high")]
    has_base, *has_sides = map(source.is_set, names)
    if objective in ("ppo_clip", "gspo", "cispo"):
        if has_base and not all(has_sides):
            draft.notes.append(
                f"actor.clip_ratio = {base:g}: used for clip_ratio_low and clip_ratio_high if they are unset; in later "
                "versions of verl, the defaults of these two fields (0.2) take precedence"
            )
        for side, has_side in zip(("low", "high"), has_sides, strict=True):
            name = f"{ACTOR}.{'clip_ratio' if has_base and not has_side else f'clip_ratio_{side}'}"
            ratio = source[name]
            if side == "low" and ratio > 1:
                draft.notes.append(f"{name} = {ratio:g}: a ratio is never below 0, so the value has the effect of 1")
                ratio = 1.0
            draft.set(f"loss.clip_{side}", ratio, source.origin(name))
    elif has_base and objective in ("dppo_tv", "dppo_kl", "gmpo"):
        draft.notes.append(f"actor.clip_ratio = {base:g}: {mode} uses clip_ratio_low and clip_ratio_high")
    elif objective in ("sapo", "policy_gradient"):
        source.note_unused(*names, why=f"loss_mode {mode} does not clip")
    if objective == "ppo_clip":
        source.copy(f"{ACTOR}.clip_ratio_c", "loss.dual_clip")
    elif objective not in ("dppo_tv", "dppo_kl"):
        source.note_unused(f"{ACTOR}.clip_ratio_c", why=f"loss_mode {mode} has no dual clip")


def _options(source: Source, draft: Draft, objective: str, mode: str) -> None:
    """Sets the options that belong to one objective. Notes SAPO's temperatures with another objective."""
    for name, ours in _OPTIONS.get(objective, {}).items():
        source.copy(f"{ACTOR}.{name}", f"loss.{ours}")
    if objective != "sapo":
        source.note_unused(*(f"{ACTOR}.{name}" for name in _SAPO), why=f"changes nothing with loss_mode {mode}")
