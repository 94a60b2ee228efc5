"""verl's policy losses."""

from shoal.config.translate.draft import Draft, Source
from shoal.config.translate.verl.names import ACTOR

_OBJECTIVES = {"vanilla": "ppo_clip", "gspo": "gspo", "sapo": "sapo", "geo_mean": "gmpo", "cispo": "cispo"}
_OBJECTIVES |= {"gpg": "policy_gradient", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl"}


def compose_loss(source: Source, draft: Draft) -> None:
    """Objective, clipping and what the ratio's denominator is."""
    mode, origin = source[f"{ACTOR}.policy_loss.loss_mode"], source.origin(f"{ACTOR}.policy_loss.loss_mode")
    base, low, high, dual = (
        source[f"{ACTOR}.{name}"] for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
    )
    if mode not in _OBJECTIVES:
        draft.refuse(f"{ACTOR}.policy_loss.loss_mode", mode, f"known: {', '.join(_OBJECTIVES)}")
        return
    objective = _OBJECTIVES[mode]
    draft.set("loss.objective", objective, origin)
    if objective in ("ppo_clip", "gspo", "cispo"):
        given = [source.is_given(f"{ACTOR}.clip_ratio{end}") for end in ("", "_low", "_high")]
        if given[0] and not all(given[1:]):
            draft.notes.append(
                f"actor.clip_ratio = {base:g}: taken for the sides that are not given; verl's own defaults of "
                "clip_ratio_low and clip_ratio_high, 0.2, come before it in its later versions"
            )
        for name, ours, value in (("clip_ratio_low", "clip_low", low), ("clip_ratio_high", "clip_high", high)):
            is_one = source.is_given(f"{ACTOR}.clip_ratio") and not source.is_given(f"{ACTOR}.{name}")
            origin = source.origin(f"{ACTOR}.clip_ratio" if is_one else f"{ACTOR}.{name}")
            draft.set(f"loss.{ours}", base if is_one else value, origin)
    if objective == "ppo_clip":
        draft.set("loss.dual_clip", dual, source.origin(f"{ACTOR}.clip_ratio_c"))
    elif source.is_given(f"{ACTOR}.clip_ratio") and objective in ("dppo_tv", "dppo_kl", "gmpo"):
        draft.notes.append(f"actor.clip_ratio = {base:g}: {mode} takes clip_ratio_low and clip_ratio_high")
    _own_options(source, draft, objective, mode)
    if objective == "cispo":
        draft.set("loss.cispo_lower", True, origin)
    if objective == "gmpo":
        draft.set("loss.gmpo_log_clip_low", low, source.origin(f"{ACTOR}.clip_ratio_low"))
        draft.set("loss.gmpo_log_clip_high", high, source.origin(f"{ACTOR}.clip_ratio_high"))
    if objective == "gspo":
        asked = source[f"{ACTOR}.loss_agg_mode"]
        if source.is_given(f"{ACTOR}.loss_agg_mode") and asked != "seq-mean-token-mean":
            draft.notes.append(f"actor.loss_agg_mode = {asked}: verl's gspo takes seq-mean-token-mean all the same")
        draft.set("loss.aggregation", "seq-mean-token-mean", origin)
    factor = source[f"{ACTOR}.loss_scale_factor"]
    if factor is not None and draft.values.get("loss.aggregation") != "seq-mean-token-sum-norm":
        draft.notes.append(f"actor.loss_scale_factor = {factor:g}: only seq-mean-token-sum-norm divides by it")
    elif factor is not None:
        draft.set("loss.denominator", factor, source.origin(f"{ACTOR}.loss_scale_factor"))
    bypass = source["algorithm.rollout_correction.bypass_mode"]
    draft.set(
        "loss.baseline", "behavior" if bypass else "proximal", source.origin("algorithm.rollout_correction.bypass_mode")
    )


def _own_options(source: Source, draft: Draft, objective: str, mode: str) -> None:
    """What one objective alone takes: DPPO's thresholds and cap, SAPO's temperatures."""
    if objective in ("dppo_tv", "dppo_kl"):
        names = {"clip_ratio_low": "dppo_divergence_low", "clip_ratio_high": "dppo_divergence_high"}
        for name, ours in (names | {"clip_ratio_c": "dppo_ratio_cap"}).items():
            draft.set(f"loss.{ours}", source[f"{ACTOR}.{name}"], source.origin(f"{ACTOR}.{name}"))
    for name, ours in (("tau_pos", "sapo_tau_positive"), ("tau_neg", "sapo_tau_negative")):
        tau = source[f"{ACTOR}.{name}"]
        if objective == "sapo":
            draft.set(f"loss.{ours}", tau, source.origin(f"{ACTOR}.{name}"))
        elif source.is_given(f"{ACTOR}.{name}"):
            draft.notes.append(f"actor.{name} = {tau:g}: changes nothing with loss_mode {mode}")
