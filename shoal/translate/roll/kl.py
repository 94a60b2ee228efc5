"""ROLL's KL, in the loss or in the reward."""

from shoal.translate.shared.draft import Draft, Source


def compose_kl(source: Source, draft: Draft) -> None:
    """Sets coefficient, estimator and place of the KL."""
    in_loss, in_reward = source["use_kl_loss"], source["add_token_level_kl"]
    coef, initial = source["kl_loss_coef"], source["init_kl_coef"]
    penalty, target, horizon = source["kl_penalty"], source["target_kl"], source["kl_horizon"]
    if in_loss and in_reward and coef:
        draft.refuse(
            "add_token_level_kl",
            True,
            "the KL goes into the loss (use_kl_loss) or into the reward, not both: choose one",
        )
        return
    if in_reward and initial:
        estimators = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3", "k3": "k3"}
        if penalty not in estimators:
            draft.refuse("kl_penalty", penalty, f"known: {', '.join(estimators)}")
            return
        draft.set("kl.coef", initial, source.origin("add_token_level_kl", "init_kl_coef"))
        draft.set("kl.place", "reward", source.origin("add_token_level_kl"))
        draft.set("kl.estimator", estimators[penalty], source.origin("kl_penalty"))
        if target is not None:
            draft.set("kl.target", target, source.origin("target_kl"))
            draft.set("kl.horizon", horizon, source.origin("kl_horizon"))
        return
    draft.set("kl.coef", coef if in_loss else 0.0, source.origin("use_kl_loss", "kl_loss_coef", "add_token_level_kl"))
    if in_loss and coef:
        draft.set("kl.output_clamp", 10.0, source.origin("use_kl_loss"))
    unused = ("kl_penalty", "init_kl_coef", "target_kl", "kl_horizon")
    source.note_unused(draft, *unused, why="only add_token_level_kl uses it")
