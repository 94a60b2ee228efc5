"""verl's KL, in the loss or in the reward."""

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.verl.names import ACTOR, REFERENCE

_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_CLAMPED = ("low_var_kl", "k3")
_MOVING = tuple(f"{REFERENCE}.{name}" for name in ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"))
"""Fields of a reference that follows the policy."""


def compose_kl(source: Source, draft: Draft) -> None:
    """Sets coefficient, estimator and place of the KL."""
    in_loss, in_reward = source[f"{ACTOR}.use_kl_loss"], source["algorithm.use_kl_in_reward"]
    coef, kind = source[f"{ACTOR}.kl_loss_coef"], source[f"{ACTOR}.kl_loss_type"]
    penalty, control = source["algorithm.kl_penalty"], source["algorithm.kl_ctrl.type"]
    weight, horizon, target = (source[f"algorithm.kl_ctrl.{name}"] for name in ("kl_coef", "horizon", "target_kl"))
    if in_loss and in_reward:
        draft.refuse(
            "algorithm.use_kl_in_reward",
            True,
            "the KL goes into the loss (use_kl_loss) or into the reward, not both: choose one",
        )
        return
    name = f"{ACTOR}.kl_loss_type" if in_loss else "algorithm.kl_penalty"
    spelled = kind if in_loss else penalty
    plain = spelled.rstrip("+")
    if plain not in _KL and (in_loss or in_reward):
        draft.refuse(name, spelled, f"known: {', '.join(_KL)}, with + for straight-through")
        return
    which = [f"{ACTOR}.use_kl_loss"]
    which += [f"{ACTOR}.kl_loss_coef"] if in_loss else []
    which = ["algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"] if in_reward else which
    draft.set("kl.coef", coef if in_loss else weight if in_reward else 0.0, source.origin(*which))
    if not in_loss and not in_reward:
        source.note_unused(draft, *_MOVING, why="no KL is computed")
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
    """Sets how often the reference moves towards the policy, and how far."""
    is_on, every, alpha = _MOVING
    if source[is_on]:
        draft.set("kl.reference_update_steps", source[every], source.origin(is_on, every))
        draft.set("kl.reference_alpha", source[alpha], source.origin(alpha))
    else:
        source.note_unused(draft, every, alpha, why="changes nothing without sync_ref_model")
