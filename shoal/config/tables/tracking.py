"""The `[tracking]` table: trackers of metrics besides `metrics.jsonl`."""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section


class TrackingConfig(Section):
    """Trackers need their packages on the coordinator's machine: `pip install 'shoal[tracking]'`, and for trackio
    `pip install 'shoal[trackio]'`. They show the metrics of `metrics.jsonl` under the same names. One that fails or is
    slow does not hold a run up."""

    completions_every_steps: int = Field(default=0, ge=0)
    """Train steps between shows of completions: in the events, which `shoal train` and `shoal run watch` print, and in
    the trackers as a table, `completions`. Above 0, each evaluation shows answers too (`eval_completions`). 0 shows
    none; `shoal run rollouts` has all of a run."""
    num_completions: int = Field(default=4, ge=1)
    """Completions per show: the first of each group, then the second of each, and so on."""
    tensorboard: bool = False
    """Write TensorBoard event files to `tensorboard/` in the run's folder."""
    wandb: Literal["disabled", "online", "offline"] = "disabled"
    """Send metrics to Weights & Biases, or write them to `wandb/` in the run's folder for a later `wandb sync`."""
    wandb_project: str = Field(default="shoal", min_length=1)
    """Weights & Biases project."""
    wandb_entity: str | None = Field(default=None, min_length=1)
    """Weights & Biases user or team; unset is the default of the account."""
    wandb_group: str | None = Field(default=None, min_length=1)
    """Weights & Biases group of the run; unset is `run.name`, so that the runs of an experiment stand together."""
    trackio: bool = False
    """Write metrics to trackio's database on this machine, which `trackio show` draws: in `TRACKIO_DIR`, or else in
    the Hugging Face cache. `run.name` is the group."""
    trackio_project: str = Field(default="shoal", min_length=1)
    """trackio project."""
