"""verl's advantage estimators."""

from typing import Any

from shoal.translate.shared.draft import Draft, Source

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


def compose_advantage(source: Source, draft: Draft) -> None:
    """Sets baseline and scale of the advantages."""
    kind, by_std = source["algorithm.adv_estimator"], source["algorithm.norm_adv_by_std_in_grpo"]
    if kind not in _ADVANTAGES:
        draft.refuse("algorithm.adv_estimator", kind, f"known: {', '.join(_ADVANTAGES)}; gae needs a critic")
        return
    baseline, scale, options = _ADVANTAGES[kind]
    origin = source.origin("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo")
    draft.set("advantage.baseline", baseline, origin)
    draft.set("advantage.scale", scale if by_std or scale != "group_std" else "none", origin)
    for name, value in options.items():
        draft.set(f"advantage.{name}", value, origin)
