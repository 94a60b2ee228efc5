"""The number of train steps that `run.total_epochs` means. The number depends on the data."""

import math

from shoal.config.load import dump_config, parse_config
from shoal.config.run import RunConfig
from shoal.errors import FieldViolation, InvalidArgument
from shoal.quantities import counted


def with_counted_steps(config: RunConfig, num_prompts: int) -> RunConfig:
    """Returns the configuration. If it has `run.total_epochs`, `run.num_steps` is computed from the data.

    A pass has as many whole batches as the data, as in other trainers. The next pass begins with the prompts left over.

    Raises `InvalidArgument` for data of less than one batch, and if `run.num_steps` is set to a different number.
    """
    if config.run.total_epochs is None:
        return config
    per_epoch = num_prompts // config.grpo.groups_per_step
    if per_epoch < 1:
        raise _refused(
            f"counts passes of whole batches, but the data have {counted(num_prompts, 'prompt')} for batches of "
            f"{config.grpo.groups_per_step}: lower grpo.groups_per_step, or give run.num_steps instead"
        )
    num_steps = math.ceil(config.run.total_epochs * per_epoch)
    if config.run.num_steps not in (0, num_steps):
        raise _refused(
            f"({config.run.total_epochs:g}, which is {counted(num_steps, 'step')} of {config.grpo.groups_per_step} "
            f"groups for {counted(num_prompts, 'prompt')}) and run.num_steps ({config.run.num_steps}) differ: give "
            "only one of the two fields"
        )
    values = dump_config(config)
    values["run"]["num_steps"] = num_steps
    return parse_config(values)


def _refused(reason: str) -> InvalidArgument:
    violation = FieldViolation(field="run.total_epochs", description=reason)
    return InvalidArgument(f"run.total_epochs: {reason}", violations=[violation])
