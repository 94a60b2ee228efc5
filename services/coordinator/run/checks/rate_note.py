"""The effect of a changed run length on the learning rate."""

from shoal.config import RunConfig
from shoal.grpo.schedule import learning_rate


def rate_note(before: RunConfig, config: RunConfig, policy_version: int) -> str:
    """Describes the jump of the learning rate after `policy_version` steps if the run's length changes and its schedule
    follows the length; empty without a jump. Refused and skipped steps do not count."""
    taken = policy_version * config.grpo.optimizer_steps_per_step
    if not taken or before.run.num_steps == config.run.num_steps or not config.run.num_steps:
        return ""
    last, now, then = learning_rate(before, taken - 1), learning_rate(config, taken), learning_rate(config, taken - 1)
    if before.learner != config.learner or last == then:
        return ""
    return (
        f"run.num_steps: {before.run.num_steps} -> {config.run.num_steps}: the schedule {config.learner.lr_scheduler} "
        f"follows the length of the run, so the learning rate goes from {last:.3g} (step {policy_version}) to "
        f"{now:.3g} (step {policy_version + 1}); for another, set learner.learning_rate or learner.lr_scheduler"
    )
