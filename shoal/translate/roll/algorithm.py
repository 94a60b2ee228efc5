"""Translates ROLL's normalization of rewards (by current or older fields), its KL, and its policy losses."""

from collections.abc import Sequence

from shoal.translate.roll.reward_worker import RewardWorker
from shoal.translate.shared.draft import Draft, Origin, Source

_BASELINES = {None: "none", "group": "group_mean", "batch": "batch_mean", "running": "running_mean"}
_SCALES = {None: "none", "group": "group_std", "batch": "batch_std", "running": "running_std"}
_PG_WORKER = "ActorPGWorker"
_OF_PPO = ("pg_clip", "use_pg_clip_range", "pg_clip_low", "pg_clip_high", "dual_clip_loss")
_OPTIONS = {
    "truncated_is": {"tis_lower_bound": "loss.ratio_low", "tis_upper_bound": "loss.ratio_high"},
    "topr": {name: f"loss.{name}" for name in ("topr_positive_weight", "topr_negative_weight")},
    "cispo": {
        "cispo_epsilon_low": "loss.clip_low",
        "cispo_epsilon_high": "loss.clip_high",
        "cispo_use_unified_mask": "loss.cispo_unified_mask",
    },
    "kimi15": {"kimi15_tau": "loss.kimi15_tau"},
}
"""ROLL's options of each objective, with Shoal's fields."""


def compose_advantage(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets baseline and scale of the advantages, and the completions that baseline and scale cover."""
    estimator, (mean, std) = source["adv_estimator"], _kinds(source)
    if estimator not in ("grpo", "reinforce"):
        reason = "Shoal supports only grpo and reinforce; gae needs a critic, which GRPO does not have"
        draft.refuse("adv_estimator", estimator, reason, cure="advantage.baseline")
        return
    for name, kind in (("norm_mean_type", mean), ("norm_std_type", std)):
        if kind not in _BASELINES:
            draft.refuse(name, kind, "Shoal supports only group, batch, running", cure="advantage.baseline")
            return
    if std == "group" and mean != "group":
        draft.refuse("norm_std_type", "group", "needs norm_mean_type group: otherwise equal rewards are divided by 0")
        return
    if "running" in (mean, std):
        draft.notes.append("Shoal computes running statistics over all rewards; ROLL intends them per domain")
    names = ("norm_mean_type", "norm_std_type", "reward_norm", "reward_shift", "reward_scale")
    origin = source.origin("adv_estimator", *(name for name in names if source.is_set(name)))
    if "batch" in (mean, std) and source["difficulty_mask"]:
        draft.notes.append(
            "Shoal computes the statistics of a batch over groups that grpo.difficulty_* keep, ROLL before its mask"
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


def compose_kl(source: Source, draft: Draft) -> None:
    """Sets coefficient, estimator and place of the KL."""
    in_loss, in_reward = source["use_kl_loss"], source["add_token_level_kl"]
    coef, initial = source["kl_loss_coef"], source["init_kl_coef"]
    penalty, target, horizon = source["kl_penalty"], source["target_kl"], source["kl_horizon"]
    if in_loss and in_reward and coef:
        reason = "the KL goes into the loss (use_kl_loss) or into the reward, not both: choose one"
        draft.refuse("add_token_level_kl", True, reason)
        return
    if in_reward and initial:
        estimators = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3", "k3": "k3"}
        if penalty not in estimators:
            draft.refuse("kl_penalty", penalty, f"Shoal supports only {', '.join(estimators)}")
            return
        draft.set("kl.coef", initial, source.origin("add_token_level_kl", "init_kl_coef"))
        draft.set("kl.place", "reward", source.origin("add_token_level_kl"))
        draft.set("kl.estimator", estimators[penalty], source.origin("kl_penalty"))
        if target is not None:
            source.copy("target_kl", "kl.target")
            draft.set("kl.horizon", horizon, source.origin("kl_horizon"))
        return
    draft.set("kl.coef", coef if in_loss else 0.0, source.origin("use_kl_loss", "kl_loss_coef", "add_token_level_kl"))
    if in_loss and coef:
        draft.set("kl.output_clamp", 10.0, source.origin("use_kl_loss"))
    unused = ("kl_penalty", "init_kl_coef", "target_kl", "kl_horizon")
    source.note_unused(*unused, why="only add_token_level_kl uses it")


def compose_loss(source: Source, draft: Draft) -> None:
    """Sets the objective and its constants."""
    variant, level = _variant(source, draft), _level(source)
    names = {"ppo": "ppo_clip", "vanilla": "policy_gradient", "tis": "truncated_is", "topr": "topr"}
    names |= {"cispo": "cispo", "kimi15": "kimi15"}
    if variant not in names or level not in ("token", "seq"):
        reason = f"Shoal supports only {', '.join(names)}, with importance_sampling token or seq"
        draft.refuse("pg_variant", f"{variant}, {level}", reason)
        return
    objective = "gspo" if variant == "ppo" and level == "seq" else names[variant]
    worker = ["actor_train.worker_cls"] if source.is_set("actor_train.worker_cls") else []
    draft.set("loss.objective", objective, source.origin("pg_variant", "importance_sampling", *worker))
    draft.set("loss.baseline", "proximal", source.origin("ppo_epochs"))
    _check_old(source, draft)
    used: tuple[str, ...]
    if objective in ("ppo_clip", "gspo"):
        low_name, high_name = ("pg_clip_low", "pg_clip_high") if source["use_pg_clip_range"] else ("pg_clip", "pg_clip")
        source.copy(low_name, "loss.clip_low")
        source.copy(high_name, "loss.clip_high")
        if source["dual_clip_loss"]:
            draft.set("loss.dual_clip", 1 + 2 * source["pg_clip"], source.origin("dual_clip_loss", "pg_clip"))
        used = ("use_pg_clip_range", low_name, high_name, "dual_clip_loss")
        used += ("pg_clip",) if source["dual_clip_loss"] else ()
    elif objective == "cispo":
        source.copy("cispo_epsilon_low", "loss.clip_low")
        source.copy("cispo_epsilon_high", "loss.clip_high")
        draft.set("loss.cispo_lower", True, source.origin("pg_variant"))
        source.copy("cispo_use_unified_mask", "loss.cispo_unified_mask")
        used = tuple(_OPTIONS["cispo"])
    else:
        # ROLL's ratios of topr are between 0 and 1, as Shoal's are by default.
        used = tuple(_OPTIONS.get(objective, ()))
        for name in used:
            source.copy(name, _OPTIONS[objective][name])
    options = (*_OF_PPO, *(name for names in _OPTIONS.values() for name in names))
    unused = [name for name in options if name not in used]
    source.note_unused(*unused, why=f"changes nothing with pg_variant {variant} and the other settings")


def _variant(source: Source, draft: Draft) -> str:
    """Returns the variant of the policy gradient, which only one of ROLL's worker classes reads."""
    variant, older = str(source["pg_variant"]), source["use_policy_loss_type"].upper()
    worker = str(source["actor_train.worker_cls"] or "").rpartition(".")[2]
    if worker not in ("", "ActorWorker", _PG_WORKER):
        reason = f"this class may have another loss: Shoal supports only ActorWorker and {_PG_WORKER}"
        draft.refuse("actor_train.worker_cls", worker, reason, cure="loss.objective")
    if worker in ("", "ActorWorker") and variant != "ppo":
        source.note_unused("pg_variant", why=f"only ROLL's {_PG_WORKER} reads it (actor_train.worker_cls)")
        variant = "ppo"
    if older != "PPO":
        draft.refuse("use_policy_loss_type", older, "an older switch: give pg_variant instead")
    return variant


def _level(source: Source) -> str:
    """Returns the level of the ratio, which only the other of ROLL's two worker classes reads."""
    if str(source["actor_train.worker_cls"] or "").rpartition(".")[2] == _PG_WORKER:
        source.note_unused("importance_sampling", why=f"ROLL's {_PG_WORKER} always has a ratio for each token")
        return "token"
    return str(source["importance_sampling"])


def _check_old(source: Source, draft: Draft) -> None:
    """Refuses ratios to the current policy if a train step has several optimizer steps."""
    several = source["ppo_epochs"] * draft.values.get("grpo.num_mini_batches", 1) > 1
    if source["force_disable_old_logprobs_recompute"] and several:
        reason = "the ratio would always be 1: give pg_variant vanilla, or one optimizer step per train step"
        draft.refuse("force_disable_old_logprobs_recompute", True, reason, cure="loss.objective")
