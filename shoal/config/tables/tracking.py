"""The `[tracking]` table: trackers of metrics, in addition to `metrics.jsonl`."""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section


class TrackingConfig(Section):
    """Trackers need their packages on the coordinator's machine: `pip install 'shoal[tracking]'`, and for trackio `pip
    install 'shoal[trackio]'`. Trackers show the metrics of `metrics.jsonl` under the same names. A tracker that fails
    or is slow does not delay a run."""

    completions_every_steps: int = Field(default=0, ge=0)
    """Train steps between shows of completions. Completions are shown in the events, which `shoal train` and `shoal run
    watch` print, and in the trackers as the table `completions`. Above 0, each evaluation also shows answers
    (`eval_completions`). 0 shows none. `shoal run rollouts` shows all completions of a run."""
    num_completions: int = Field(default=4, ge=1)
    """Number of completions per show: the first completion of each group, then the second of each group, and so on."""
    tensorboard: bool = False
    """Write TensorBoard event files to `tensorboard/` in the run's folder."""
    wandb: Literal["disabled", "online", "offline"] = "disabled"
    """Send metrics to Weights & Biases, or write them to `wandb/` in the run's folder for a later `wandb sync`."""
    wandb_project: str = Field(default="shoal", min_length=1)
    """Weights & Biases project."""
    wandb_entity: str | None = Field(default=None, min_length=1)
    """Weights & Biases user or team. If unset, the account's default is used."""
    wandb_group: str | None = Field(default=None, min_length=1)
    """Weights & Biases group of the run; if unset `run.name`, so that the runs of an experiment are shown together."""
    trackio: bool = False
    """Write metrics to trackio's database on this machine, which `trackio show` draws. The database is in
    `TRACKIO_DIR`, or else in the Hugging Face cache. `run.name` is the group."""
    trackio_project: str = Field(default="shoal", min_length=1)
    """Name of the trackio project."""
