"""The `[run]` table: the name, seed and length of a run."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from shoal.config.tables.section import NEXT_STEP, Fixed, Section

MAX_RUN_NAME_CHARS = 63
RUN_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_RUN_NAME_CHARS - 1}}}")


class RunSection(Section):
    """The `[run]` table."""

    name: Annotated[str, Fixed("the id of the run begins with the name")] = "run"
    """Prefix of the run id: at most 63 lower-case letters, digits, dots, underscores and dashes."""
    seed: Annotated[int, Fixed("the order of the prompts in the ledger follows from the seed")] = Field(
        default=0, ge=0, lt=2**53
    )
    """Seed of the data order, of every completion and of the learner."""
    deterministic: bool = False
    """Let a run that was interrupted and resumed equal a run that was not, bit for bit except for times and rates.
    Needs CPUs, float32, `grpo.max_staleness` 0 and `num_threads`, and costs throughput (docs/determinism.md)."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Number of threads with which each generator and each learner rank computes on a CPU. If unset, generators and
    learner ranks share the cores of their machine."""
    num_steps: Annotated[int, NEXT_STEP] = Field(default=100, ge=0, lt=2**53)
    """Number of train steps to take, at least 1. With 0, `total_epochs` gives the number once the data is loaded. A
    resume with another number extends the run, also a finished run, or ends the run earlier. The learning rate then
    follows the schedule of the new number."""
    total_episodes: Annotated[int | None, NEXT_STEP] = Field(default=None, ge=1, lt=2**53)
    """Total number of completions to train on, in place of `num_steps`, which becomes total_episodes //
    (grpo.groups_per_step x grpo.group_size). A resume that changes either of these two fields needs `num_steps`."""
    total_epochs: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0, lt=2**31)
    """Number of passes over the prompts that are short enough, in place of `num_steps`, which becomes total_epochs x
    (prompts // grpo.groups_per_step), rounded up, when the data is loaded. A resume that changes grpo.groups_per_step
    needs `num_steps`."""

    changed_data: Literal["refuse", "accept"] = "refuse"
    """Treatment of a resume if a file, data set or task of `data.sources` differs from the start of the run. With
    `accept` the run continues: other rows take the places of the rows that the ledger names, and learned prompts
    (`grpo.easy_rate`) stay excluded by their row. Another base model is refused in any case. The run reports changed
    held-out questions (docs/data.md)."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or a digit")
        return name
