"""The `[tracking]` table: where a run's metrics go besides `metrics.jsonl`."""

from typing import Literal

from pydantic import Field

from shoal.config.section import Section


class TrackingConfig(Section):
    """Each needs its package on the coordinator's machine: `pip install 'shoal[tracking]'`."""

    tensorboard: bool = False
    """Write TensorBoard event files to `tensorboard/` in the run's folder."""
    wandb: Literal["disabled", "online", "offline"] = "disabled"
    """Send to Weights & Biases, or write to `wandb/` in the run's folder for `wandb sync`."""
    wandb_project: str = Field(default="shoal", min_length=1)
    """Weights & Biases project."""
    wandb_entity: str | None = Field(default=None, min_length=1)
    """Weights & Biases user or team; unset is the account's own."""
    wandb_group: str | None = Field(default=None, min_length=1)
    """Weights & Biases group that the run belongs to."""
