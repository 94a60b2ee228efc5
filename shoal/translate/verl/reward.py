"""verl's reward model and reward managers."""

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.reward_model import set_reward_model
from shoal.translate.verl.fields import OVERLONG


def compose_reward_model(source: Source, draft: Draft) -> None:
    """Replaces the verifiers of the rows by a reward model; needs the sources to be set."""
    is_on, path = source["reward_model.enable"], source["reward_model.model.path"]
    if not is_on:
        source.note_unused(draft, "reward_model.model.path", why="changes nothing without reward_model.enable")
        return
    if not path:
        draft.refuse("reward_model.enable", True, "reward_model.model.path must name the model", cure="reward.model")
        return
    set_reward_model(path, draft, source.origin("reward_model.enable", "reward_model.model.path"))


def compose_overlong(source: Source, draft: Draft) -> None:
    """Sets DAPO's overlong buffer."""
    manager, prefix = source["reward_model.reward_manager"], "reward_model.reward_kwargs."
    if manager not in ("naive", "dapo", "batch", "prime", None):
        draft.refuse("reward_model.reward_manager", manager, "known: naive, dapo, batch, prime", cure="reward.overlong")
    names = [f"{prefix}{name}" for name, *_ in OVERLONG]
    is_on, tokens, factor, limit = (source[name] for name in names)
    if manager == "dapo" and is_on:
        if tokens < 0 or factor < 0 or (limit is not None and limit < 1):
            draft.refuse(names[1], tokens, "length, factor and limit of the overlong buffer must be positive")
            return
        overlong = {"factor": factor, "buffer_tokens": tokens} | ({"max_length_tokens": limit} if limit else {})
        draft.set("reward.overlong", overlong, source.origin(*names))
        return
    for name in names:
        if source[name]:
            source.note_unused(draft, name, why="only the reward manager dapo with an enabled buffer uses it")
