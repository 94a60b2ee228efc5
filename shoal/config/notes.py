"""Notes on settings that are allowed, and do nothing."""

from shoal.config.run import RunConfig


def settings_without_effect(config: RunConfig) -> list[str]:
    """Describes the settings that have no effect in a run of this length, each with its cure."""
    every, num_steps = config.checkpoint.export_every_steps, config.run.num_steps
    if 0 < num_steps < every:
        return [
            f"checkpoint.export_every_steps: {every} is more than the {num_steps} steps of the run, so no step is "
            "exported, only the trained model at the end; lower it, or set it to 0"
        ]
    return []
