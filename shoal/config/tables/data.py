"""The `[data]` table: sources of prompts."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import Section


class SourceConfig(Section):
    """One source of prompts, given by exactly one of `path`, `dataset` and `task`."""

    name: str | None = Field(default=None, min_length=1)
    """Name of the source in prompt ids and metrics. If unset, the name is made from path, data set or task."""
    path: str | list[str] | None = None
    """A JSONL or Parquet file on the coordinator's machine, or a list of files, which are read as one file."""
    dataset: str | None = None
    """A Hugging Face data set: its name, or a folder that `datasets.load_dataset` reads."""
    dataset_config: str | None = None
    """Configuration name of the Hugging Face data set."""
    split: str = "train"
    """Split of the Hugging Face data set."""
    task: str | None = None
    """Name of a reasoning-gym task, for example `basic_arithmetic`, or of one of Shoal's own tasks. `arithmetic` asks
    for sums. `multiplication` asks for products that the environment `calculator` computes. `guessing` asks for numbers
    from 1 to 5 that the environment `guess_number` hides."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task, by the names that the task gives its options."""
    task_size: int = Field(default=1000, ge=1, le=1_000_000)
    """Number of questions that the task generates."""
    task_seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed of the task's questions; another seed gives other questions."""
    fraction: float | None = Field(default=None, gt=0, le=1000)
    """Share of the rows to use. A share above 1 repeats rows. Cannot be combined with `count`."""
    count: int | None = Field(default=None, ge=1, le=10_000_000)
    """Number of rows to use. If the source has fewer rows, rows repeat. Cannot be combined with `fraction`."""
    messages_column: str = "messages"
    """Column with the chat messages (a list of role and content, or such a list as JSON text), or with a plain
    question. A content is a text, or a list of parts of the type "text". `tool_calls`, `tool_call_id` and `name` go to
    the chat template as well. Other message fields that contain words, and images, are refused. A final message of the
    assistant is left out."""
    ground_truth_column: str = "ground_truth"
    """Column with the label, or list of labels, that verifiers compare answers with. A dot selects a key in a column of
    tables, as in verl's `reward_model.ground_truth`. A number is compared as the text that the data has for it."""
    label_columns: dict[str, str] = Field(default_factory=dict)
    """Columns that make up the label, in place of `ground_truth_column`. The label is then a table that has the value
    of each column under the name that is given here. If a row lacks a column, the value is null."""
    verifier_column: str = "dataset"
    """Column with the name of the verifier, or with a list of names, one name per label."""
    labels: list[str] = Field(default_factory=list)
    """Use only the rows whose `verifier_column` has one of these names, in upper or lower case. If empty, all rows are
    used. So the rows of one file can be several sources, each with a share of its own."""
    verifier: str | list[str] | None = None
    """Verifier for every row, in place of `verifier_column`. Each of several verifiers reads the row's label."""
    environment: str | None = Field(default=None, min_length=1)
    """Environment in which the prompts are played as episodes (docs/episodes.md). Their rows need no verifier."""
    environment_column: str | None = Field(default=None, min_length=1)
    """Column with the name of the environment. A row without a name is a prompt of a single turn. A row may also have
    open-instruct's `env_config`, a table with `env_name` and the task. Cannot be combined with `environment`."""
    environment_task_column: str = "environment_task"
    """Column with the task for the environment: a table, or a table as JSON text. A row without this column has an
    empty task. If the name is empty, no column is read."""
    tools_column: str = "tools"
    """Column with the list of names of the environment's tools that the row offers. A row without this column offers
    all tools, and a row with an empty list offers none. Tool definitions in a row without an environment are refused,
    since the prompt would not show the definitions. If the name is empty, no column is read."""
    weight: float = Field(default=1.0, gt=0)
    """Factor of the rewards of the source's prompts."""
    system_prompt: str | None = None
    """System message of every row, in place of the row's own system message."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        named = [name for name in ("path", "dataset", "task") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"give exactly one of path, dataset and task (given: {', '.join(named) or 'none'})")
        if self.fraction is not None and self.count is not None:
            raise ValueError("give fraction or count, not both")
        if self.path == []:
            raise ValueError("path is an empty list: name at least one file")
        if self.verifier == []:
            raise ValueError("verifier is an empty list: name a verifier, or remove the field to use verifier_column")
        if self.labels and self.verifier is not None:
            raise ValueError("labels selects rows by verifier_column, but verifier replaces it: give only one of them")
        if self.environment is not None and self.environment_column is not None:
            raise ValueError("give environment or environment_column, not both")
        for name in ("environment_task_column", "tools_column"):
            is_set = getattr(self, name) not in ("", type(self).model_fields[name].default)
            if is_set and not self.names_environments:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} applies only with an environment: give environment or "
                    f"environment_column as well, or leave {name} out"
                )
        return self

    @property
    def verifiers(self) -> list[str]:
        """The verifiers of every row, if the source names them; empty if each row names its own."""
        return [self.verifier] if isinstance(self.verifier, str) else self.verifier or []

    @property
    def names_environments(self) -> bool:
        """Whether prompts of the source may be played in an environment."""
        return self.environment is not None or self.environment_column is not None


class DataConfig(Section):
    sources: list[SourceConfig] = Field(min_length=1)
    """The sources, mixed by their `fraction` or `count`."""
    max_prompt_tokens: int = Field(default=2048, ge=1)
    """Maximum length of a prompt. Longer prompts are dropped at loading, and counted."""
    malformed_labels: Literal["refuse", "drop", "keep"] = "refuse"
    """Treatment of prompts whose label cannot be used by their verifier, such as a pattern that does not compile. The
    start of a run and `shoal config check --deep` look for such prompts. `refuse` refuses the run, and `drop` leaves
    the prompts out and counts them. `keep` does not look for such prompts, and their completions are UNSCORABLE."""
    shuffle: bool = True
    """Visit prompts in an order drawn from `run.seed`, anew for each pass. Otherwise prompts keep the file order."""
