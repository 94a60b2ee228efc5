"""The `[checkpoint]` table: checkpoints, their mirror, and exports of steps."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import AT_ONCE, Section


class CheckpointConfig(Section):
    """The `[checkpoint]` table."""

    every_steps: Annotated[int, AT_ONCE] = Field(default=50, ge=1)
    """Train steps between checkpoints. A stop, a failure that leaves the learner, and the last step also write one."""
    timeout_s: Annotated[float, AT_ONCE] = Field(default=1800.0, gt=0, le=86_400)
    """Longest time in which the learner writes or restores a checkpoint, or writes an export. One that takes longer
    hangs: its processes end, and the run goes on from the last checkpoint once they are back. A restore on another
    number of ranks converts the files first (135M parameters: 10 s)."""
    keep_last: Annotated[int, AT_ONCE] = Field(default=2, ge=1)
    """Number of checkpoints to keep; older ones are deleted once a newer one is committed."""
    best_metric: str = ""
    """Metric of a train step or an evaluation (docs/metrics.md), for example `eval/verifiable_correct_rate`: the
    checkpoint with the best value is kept as well, for `shoal export --step`. Empty keeps the last ones alone."""
    best: Literal["highest", "lowest"] = "highest"
    """The best value of `best_metric`."""
    mirror: str = ""
    """A second place for checkpoints: a folder, `s3://BUCKET/NAME`, `gs://BUCKET/NAME`, or another URL of fsspec. A
    committed checkpoint is copied to `<mirror>/<run>` while the run goes on, the newest first, and as many stay as
    here. `shoal train --resume RUN --set checkpoint.mirror=URL` takes a run from there that the data folder lacks."""
    export_every_steps: Annotated[int, AT_ONCE] = Field(default=0, ge=0)
    """Train steps between exports: the model of such a step is written as a Hugging Face folder,
    `<run>/exports/step-<step>`, while the run goes on. 0 writes the trained model alone, at the end of the run."""
    export_keep_last: Annotated[int, AT_ONCE] = Field(default=3, ge=0)
    """Number of these exports to keep; older ones are deleted once a newer one is complete. 0 keeps all."""
    export_best_metric: str = ""
    """Metric of a train step or an evaluation (docs/metrics.md), for example `eval/verifiable_correct_rate`: the export
    with the best value is kept as well. Empty keeps the last ones alone."""
    export_best: Literal["highest", "lowest"] = "highest"
    """The best value of `export_best_metric`."""

    @model_validator(mode="after")
    def _the_best_of_something(self) -> Self:
        if self.export_best_metric and not (self.export_every_steps and self.export_keep_last):
            raise ValueError(
                f"export_best_metric ({self.export_best_metric}) chooses the export to keep besides the last ones: set "
                "export_every_steps and export_keep_last, or leave it empty"
            )
        return self
