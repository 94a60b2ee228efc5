"""A reward model, as other systems have it: it scores every row, whatever the row says."""

from shoal.config.translate.draft import Draft, Origin


def set_reward_model(path: str, draft: Draft, origin: Origin) -> None:
    """Sets `reward.model`, and makes it the judge of all sources that the draft has."""
    draft.set("reward.model", {"path": path}, origin)
    for name in ("data.sources", "evaluation.sources"):
        if tables := draft.values.get(name):
            draft.values[name] = [table | {"verifier": "reward_model"} for table in tables]
