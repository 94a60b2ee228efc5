"""ROLL's normalization of rewards, in today's words and in older ones."""

from shoal.config.translate.draft import Draft, Source

_BASELINES = {None: "none", "group": "group_mean", "batch": "batch_mean", "running": "running_mean"}
_SCALES = {None: "none", "group": "group_std", "batch": "batch_std", "running": "running_std"}


def compose_advantage(source: Source, draft: Draft) -> None:
    """Baseline and scale."""
    estimator, (mean, std) = source["adv_estimator"], _kinds(source, draft)
    if estimator not in ("grpo", "reinforce"):
        draft.refuse("adv_estimator", estimator, "known here: grpo, reinforce; gae needs a critic, which GRPO has not")
        return
    for name, kind in (("norm_mean_type", mean), ("norm_std_type", std)):
        if kind not in _BASELINES:
            draft.refuse(name, kind, "known: group, batch, running", cure="advantage.baseline")
            return
    if std == "group" and mean != "group":
        draft.refuse("norm_std_type", "group", "equal rewards would be divided by 0 without their group's mean")
        return
    if "running" in (mean, std):
        draft.notes.append("running statistics are of all rewards; ROLL means to keep them for each domain")
    names = ("norm_mean_type", "norm_std_type", "reward_norm", "reward_shift", "reward_scale")
    origin = source.origin("adv_estimator", *(name for name in names if source.is_given(name)))
    draft.set("advantage.baseline", _BASELINES[mean], origin)
    draft.set("advantage.scale", _SCALES[std], origin)


def _kinds(source: Source, draft: Draft) -> tuple[str | None, str | None]:
    """What mean and standard deviation are of.

    The older words: `reward_shift` takes the mean and leaves the spread; without it a group or a batch is normalized
    whole, and of `running` only what `reward_shift` and `reward_scale` ask for.
    """
    legacy, shift, scale = source["reward_norm"], source["reward_shift"], source["reward_scale"]
    mean, std = source["norm_mean_type"], source["norm_std_type"]
    if source["adv_estimator"] == "grpo" or legacy in ("group", "grpo"):
        return "group", None if shift else "group"
    if legacy == "running":
        return "running" if shift else None, "running" if scale else None
    if legacy:
        return legacy, None if shift else legacy
    for name in ("reward_shift", "reward_scale"):
        if source[name]:
            draft.notes.append(f"{name} = true: changes nothing without reward_norm")
    return mean, std
