"""The `[checkpoint]` table: checkpoints, their mirror, and exports of steps."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import AT_ONCE, Section


class CheckpointConfig(Section):
    """The `[checkpoint]` table."""

    every_steps: Annotated[int, AT_ONCE] = Field(default=50, ge=1)
    """Train steps between checkpoints. A stop, a failure that spares the learner, and the last step also write one."""
    timeout_s: Annotated[float, AT_ONCE] = Field(default=1800.0, gt=0, le=86_400)
    """Longest time in which the learner writes or restores a checkpoint, or writes an export. A learner that takes
    longer is taken to hang: its processes end, and the run continues from the last checkpoint once the processes are
    back. A restore on another number of ranks converts the files first (135M parameters: 10 s)."""
    keep_last: Annotated[int, AT_ONCE] = Field(default=2, ge=1)
    """Number of checkpoints to keep. Older checkpoints are deleted once a newer checkpoint is committed."""
    best_metric: str = ""
    """Metric of a train step or an evaluation (docs/metrics.md), for example `eval/verifiable_correct_rate`. The
    checkpoint with the best value of this metric is kept in addition to the last ones, for `shoal export --step`. If
    empty, only the last checkpoints are kept."""
    best: Literal["highest", "lowest"] = "highest"
    """Whether the highest or the lowest value of `best_metric` is the best."""
    mirror: str = ""
    """A second place for checkpoints: a folder, `s3://BUCKET/NAME`, `gs://BUCKET/NAME`, or another URL of fsspec. A
    committed checkpoint is copied to `<mirror>/<run>` while the run continues, the newest checkpoint first. The mirror
    keeps as many checkpoints as the run's folder. `shoal train --resume RUN --set checkpoint.mirror=URL` fetches a run
    from the mirror if the data folder lacks the run."""
    export_every_steps: Annotated[int, AT_ONCE] = Field(default=0, ge=0)
    """Train steps between exports. An export writes the model of its step as a Hugging Face folder,
    `<run>/exports/step-<step>`, while the run continues. With 0 only the trained model is written, at the end."""
    export_keep_last: Annotated[int, AT_ONCE] = Field(default=3, ge=0)
    """Number of exports to keep. Older exports are deleted once a newer export is complete. 0 keeps all."""
    export_best_metric: str = ""
    """Metric of a train step or an evaluation (docs/metrics.md), for example `eval/verifiable_correct_rate`. The export
    with the best value is kept in addition to the last ones. If empty, only the last exports are kept."""
    export_best: Literal["highest", "lowest"] = "highest"
    """Whether the highest or the lowest value of `export_best_metric` is the best."""

    @model_validator(mode="after")
    def _the_best_of_something(self) -> Self:
        if self.export_best_metric and not (self.export_every_steps and self.export_keep_last):
            raise ValueError(
                f"export_best_metric ({self.export_best_metric}) keeps an export besides the last ones, so it needs "
                "export_every_steps and export_keep_last above 0: set both, or leave export_best_metric empty"
            )
        return self
