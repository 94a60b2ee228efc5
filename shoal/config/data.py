"""The `[data]` table: where prompts come from."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section


class SourceConfig(Section):
    """One source of prompts; exactly one of `path`, `dataset` and `task` names it."""

    path: str | None = None
    """A JSONL or Parquet file on the coordinator's machine."""
    dataset: str | None = None
    """A Hugging Face data set by name, or a folder that `datasets.load_dataset` reads."""
    dataset_config: str | None = None
    """Configuration name of the Hugging Face data set."""
    split: str = "train"
    """Split of the Hugging Face data set."""
    task: str | None = None
    """A reasoning-gym task by name, for example `basic_arithmetic`, or `arithmetic` for Shoal's own sums."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task, by its own names."""
    task_size: int = Field(default=1000, ge=1)
    """Number of questions that the task makes."""
    task_seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed that the task makes its questions from; another seed gives other questions."""
    fraction: float | None = Field(default=None, gt=0)
    """Share of the source to use; above 1 repeats it. Excludes `count`."""
    count: int | None = Field(default=None, ge=1)
    """Number of prompts to use; more than there are repeats them. Excludes `fraction`."""
    messages_column: str = "messages"
    """Column with the chat messages (a list of role and content), or with a plain question."""
    ground_truth_column: str = "ground_truth"
    """Column with the label, or list of labels, that verifiers compare with. A dot reaches into a column of tables, as
    in verl's `reward_model.ground_truth`."""
    verifier_column: str = "dataset"
    """Column with the verifier's name, or list of names, one for each label."""
    verifier: str | None = None
    """Verifier for every row; replaces `verifier_column`."""
    weight: float = Field(default=1.0, gt=0)
    """Factor of the rewards of its prompts: what a correct answer is worth."""
    system_prompt: str | None = None
    """A system message to put before the messages of every row."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        named = [name for name in ("path", "dataset", "task") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"give exactly one of path, dataset and task (given: {', '.join(named) or 'none'})")
        if self.fraction is not None and self.count is not None:
            raise ValueError("give fraction or count, not both")
        return self


class DataConfig(Section):
    sources: list[SourceConfig] = Field(min_length=1)
    """The sources, mixed in the proportions that their `fraction` or `count` give."""
    max_prompt_tokens: int = Field(default=2048, ge=1)
    """Longer prompts are dropped when the data is loaded, and counted."""
    malformed_labels: Literal["refuse", "drop", "keep"] = "refuse"
    """What becomes of prompts whose label their verifier cannot judge by, such as a pattern that does not compile.
    They are found when a run starts, and by `shoal config check --deep`: the run is refused, or they are left out and
    counted; `keep` looks for none, and their completions are UNSCORABLE."""
    shuffle: bool = True
    """Visit prompts in an order drawn from `run.seed`, a new one for each pass; else in file order."""
