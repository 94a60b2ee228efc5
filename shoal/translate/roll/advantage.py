"""ROLL's normalization of rewards, by current and by older fields."""

from collections.abc import Sequence

from shoal.translate.roll.reward_worker import RewardWorker
from shoal.translate.shared.draft import Draft, Origin, Source

_BASELINES = {None: "none", "group": "group_mean", "batch": "batch_mean", "running": "running_mean"}
_SCALES = {None: "none", "group": "group_std", "batch": "batch_std", "running": "running_std"}


def compose_advantage(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets baseline and scale of the advantages, and the completions that they cover."""
    estimator, (mean, std) = source["adv_estimator"], _kinds(source)
    if estimator not in ("grpo", "reinforce"):
        reason = "known: grpo, reinforce; gae needs a critic, which GRPO does not have"
        draft.refuse("adv_estimator", estimator, reason, cure="advantage.baseline")
        return
    for name, kind in (("norm_mean_type", mean), ("norm_std_type", std)):
        if kind not in _BASELINES:
            draft.refuse(name, kind, "known: group, batch, running", cure="advantage.baseline")
            return
    if std == "group" and mean != "group":
        draft.refuse("norm_std_type", "group", "needs norm_mean_type group: otherwise equal rewards are divided by 0")
        return
    if "running" in (mean, std):
        draft.notes.append("running statistics are over all rewards; ROLL intends them per domain")
    names = ("norm_mean_type", "norm_std_type", "reward_norm", "reward_shift", "reward_scale")
    origin = source.origin("adv_estimator", *(name for name in names if source.is_set(name)))
    if "batch" in (mean, std) and source["difficulty_mask"]:
        draft.notes.append(
            "the statistics of a batch are over the groups that grpo.difficulty_* keep; ROLL takes them before its mask"
        )
    draft.set("advantage.baseline", _BASELINES[mean], origin)
    draft.set("advantage.scale", _SCALES[std], origin)
    is_wide = source["whiten_advantages"] or "batch" in (mean, std)
    if is_wide and len({worker.verifier for worker in workers}) > 1 and "running" not in (mean, std):
        draft.set("advantage.batch_per_verifier", True, Origin("rewards: ROLL compares within a domain", True))


def _kinds(source: Source) -> tuple[str | None, str | None]:
    """Returns the kinds of completions that the mean and the standard deviation cover.

    In the older fields, `reward_shift` subtracts the mean and keeps the spread; without it a group or a batch is fully
    normalized. With `running`, `reward_shift` turns on the mean, and `reward_scale` the standard deviation.
    """
    legacy, shift, scale = source["reward_norm"], source["reward_shift"], source["reward_scale"]
    legacy = None if legacy == "None" else legacy  # As ROLL's own examples spell it.
    mean, std = source["norm_mean_type"], source["norm_std_type"]
    if source["adv_estimator"] == "grpo" or legacy in ("group", "grpo"):
        return "group", None if shift else "group"
    if legacy == "running":
        return "running" if shift else None, "running" if scale else None
    if legacy:
        return legacy, None if shift else legacy
    for name in ("reward_shift", "reward_scale"):
        if source[name]:
            source.note_unused(name, why="changes nothing without reward_norm")
    return mean, std
