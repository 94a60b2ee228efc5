"""Reward models of other systems, which score every row, whatever verifier the row names."""

from shoal.translate.shared.draft import Draft, Origin


def set_reward_model(path: str, draft: Draft, origin: Origin) -> None:
    """Sets `reward.model`, and makes it the verifier of all sources in the draft."""
    draft.set("reward.model", {"path": path}, origin)
    for name in ("data.sources", "evaluation.sources"):
        if tables := draft.values.get(name):
            draft.values[name] = [table | {"verifier": "reward_model"} for table in tables]
