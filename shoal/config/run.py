"""RunConfig, the root of the configuration."""

from typing import Self

from pydantic import model_validator

from shoal.config.fits import check_fits
from shoal.config.run_tables import RunTables
from shoal.quantities import counted


class RunConfig(RunTables):
    """Everything that determines a run, one section per concern.

    Each service receives the whole configuration and reads the sections that it needs, so that no setting is copied.
    """

    @model_validator(mode="after")
    def _steps_follow_from_episodes(self) -> Self:
        if self.run.total_epochs is not None:
            return self._with_steps_of_epochs()
        if self.run.num_steps < 1:
            raise ValueError("run.num_steps: must be at least 1 (given: 0)")
        if self.run.total_episodes is None:
            return self
        per_step = self.grpo.completions_per_step
        num_steps = self.run.total_episodes // per_step
        if num_steps < 1:
            raise ValueError(
                f"run.total_episodes ({self.run.total_episodes}) must be at least the {per_step} completions of one "
                "step (grpo.groups_per_step x grpo.group_size)"
            )
        # A resolved configuration, as it travels and is saved, contains both.
        if "num_steps" in self.run.model_fields_set and self.run.num_steps != num_steps:
            raise ValueError(
                f"run.num_steps ({self.run.num_steps}) and run.total_episodes ({self.run.total_episodes}, which is "
                f"{counted(num_steps, 'step')} of {counted(per_step, 'completion')}) differ: give only one of the two "
                "fields"
            )
        return self._with_steps(num_steps)

    def _with_steps_of_epochs(self) -> Self:
        if self.run.total_episodes is not None:
            raise ValueError("run.total_epochs: run.total_episodes is also given; give only one of the two fields")
        if "num_steps" not in self.run.model_fields_set:
            # The data decide; shoal.config.epochs counts them.
            return self._with_steps(0)
        return self

    def _with_steps(self, num_steps: int) -> Self:
        return self.model_copy(update={"run": self.run.model_copy(update={"num_steps": num_steps})})

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        check_fits(self)
        return self
