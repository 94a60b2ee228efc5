"""Notes on settings that are allowed, and do less than they seem to."""

from shoal.config.run import RunConfig


def notes_on(config: RunConfig) -> list[str]:
    """Describes the settings that have no effect, or less than they promise, each with its cure."""
    return [*_without_effect(config), *_beyond_determinism(config)]


def _without_effect(config: RunConfig) -> list[str]:
    every, num_steps = config.checkpoint.export_every_steps, config.run.num_steps
    if 0 < num_steps < every:
        return [
            f"checkpoint.export_every_steps: {every} is more than the {num_steps} steps of the run, so no step is "
            "exported, only the trained model at the end; lower it, or set it to 0"
        ]
    return []


def _beyond_determinism(config: RunConfig) -> list[str]:
    """Names the parts of a deterministic run whose answers Shoal does not determine."""
    reward = config.reward
    if not config.run.deterministic:
        return []
    judges = {
        "reward.judge": bool(reward.judge.base_url),
        "reward.model": bool(reward.model.path or reward.model.base_url),
        "reward.servers": bool(reward.servers),
        "reward.custom": bool(reward.custom),
    }
    if found := [name for name, is_used in judges.items() if is_used]:
        return [
            f"run.deterministic: a resumed run equals one that was not interrupted only if the values of "
            f"{' and '.join(found)} depend on prompt and completion alone, without chance, clock or load; where they "
            "do not, use verifiers that compute"
        ]
    return []
