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
        for name, ours, value in (("clip_ratio_low", "clip_low", low), ("clip_ratio_high", "clip_high", high)):
            is_one = source.is_given(f"{ACTOR}.clip_ratio") and not source.is_given(f"{ACTOR}.{name}")
            origin = source.origin(f"{ACTOR}.clip_ratio" if is_one else f"{ACTOR}.{name}")
            draft.set(f"loss.{ours}", base if is_one else value, origin)
    if objective == "ppo_clip":
        draft.set("loss.dual_clip", dual, source.origin(f"{ACTOR}.clip_ratio_c"))
    if objective == "cispo":
        draft.set("loss.cispo_lower", True, origin)
    if objective == "gmpo":
        draft.set("loss.gmpo_log_clip_low", low, source.origin(f"{ACTOR}.clip_ratio_low"))
        draft.set("loss.gmpo_log_clip_high", high, source.origin(f"{ACTOR}.clip_ratio_high"))
    if objective == "gspo":
        draft.set("loss.aggregation", "seq-mean-token-mean", origin)
    if (factor := source[f"{ACTOR}.loss_scale_factor"]) is not None:
        draft.set("loss.denominator", factor, source.origin(f"{ACTOR}.loss_scale_factor"))
    bypass = source["algorithm.rollout_correction.bypass_mode"]
    draft.set(
        "loss.baseline", "behavior" if bypass else "proximal", source.origin("algorithm.rollout_correction.bypass_mode")
    )
