"""ROLL's normalization of rewards, in today's words and in older ones."""

from shoal.config.translate.draft import Draft, Source


def compose_advantage(source: Source, draft: Draft) -> None:
    """Baseline and scale."""
    estimator, origin = source["adv_estimator"], source.origin("adv_estimator")
    mean, std = source["norm_mean_type"], source["norm_std_type"]
    shift, scale, legacy = source["reward_shift"], source["reward_scale"], source["reward_norm"]
    if estimator not in ("grpo", "reinforce"):
        draft.refuse("adv_estimator", estimator, "known here: grpo, reinforce; gae needs a critic, which GRPO has not")
        return
    if estimator == "grpo":
        mean = std = "group"
    elif legacy:
        mean = std = "group" if legacy == "grpo" else legacy
    if shift and not scale:
        std = None
    elif scale and not shift:
        mean = None
    for name, kind in (("norm_mean_type", mean), ("norm_std_type", std)):
        if kind not in (None, "group", "batch"):
            draft.refuse(name, kind, "known: group, batch; running statistics are not kept")
            return
    if std == "group" and mean != "group":
        draft.refuse("norm_std_type", "group", "equal rewards would be divided by 0 without their group's mean")
        return
    origin = source.origin(
        "adv_estimator", *(n for n in ("reward_norm", "reward_shift", "reward_scale") if source.is_given(n))
    )
    draft.set("advantage.baseline", {None: "none", "group": "group_mean", "batch": "batch_mean"}[mean], origin)
    draft.set("advantage.scale", {None: "none", "group": "group_std", "batch": "batch_std"}[std], origin)
