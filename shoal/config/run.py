"""RunConfig: the root of the configuration."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from shoal.config.algorithm import GrpoConfig, SamplingConfig
from shoal.config.data import DataConfig, SourceConfig
from shoal.config.model import ModelConfig
from shoal.config.section import Section
from shoal.config.services import (
    CoordinatorConfig,
    GeneratorConfig,
    LaunchConfig,
    LearnerConfig,
    RewardConfig,
    WeightsConfig,
)

MAX_RUN_NAME_CHARS = 63
RUN_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_RUN_NAME_CHARS - 1}}}")


class RunSection(Section):
    """The `[run]` table."""

    name: str = "run"
    """Run ids begin with it. Lower-case letters, digits, dot, underscore and dash; at most 63."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed of the data order, of every completion and of the learner."""
    num_steps: int = Field(default=100, ge=1, lt=2**53)
    """Train steps to take."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("use 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit")
        return name


class CheckpointConfig(Section):
    """The `[checkpoint]` table."""

    every_steps: int = Field(default=50, ge=1)
    """Steps from one checkpoint to the next. Stopping, and the last step, write one as well."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints to keep; older ones are deleted once a newer one is committed."""


class EvaluationConfig(Section):
    """The `[evaluation]` table: held-out questions that the first and the last policy answer, greedily."""

    sources: list[SourceConfig] = Field(default_factory=list)
    """Where the questions come from; none means no evaluation."""
    num_prompts: int = Field(default=200, ge=1)
    """Questions to ask, the first of the sources that are not among the training prompts."""


class RunConfig(Section):
    """Everything that determines a run, one section a concern.

    A service is given the whole of it and reads the sections that it needs, so that nothing is copied.
    """

    run: RunSection = RunSection()
    model: ModelConfig
    data: DataConfig
    sampling: SamplingConfig = SamplingConfig()
    grpo: GrpoConfig = GrpoConfig()
    generator: GeneratorConfig = GeneratorConfig()
    reward: RewardConfig = RewardConfig()
    learner: LearnerConfig = LearnerConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    launch: LaunchConfig = LaunchConfig()

    @model_validator(mode="after")
    def _context_holds_a_prompt_and_its_completion(self) -> Self:
        given = self.generator.max_model_len
        if given is not None and given < self.max_sequence_tokens:
            raise ValueError(
                f"generator.max_model_len ({given}) must be at least data.max_prompt_tokens + "
                f"sampling.max_completion_tokens ({self.max_sequence_tokens}): raise it or leave it unset"
            )
        return self

    @model_validator(mode="after")
    def _queues_hold_a_group(self) -> Self:
        # A group that does not fit would be refused, and tried again, until it ran into its deadline.
        generator, reward = self.generator, self.reward
        for names, room in (
            (
                "generator.max_num_seqs + generator.max_queued_requests",
                generator.max_num_seqs + generator.max_queued_requests,
            ),
            ("reward.num_processes + reward.max_queued", reward.num_processes + reward.max_queued),
        ):
            if room < self.grpo.group_size:
                raise ValueError(
                    f"{names} ({room}) must be at least grpo.group_size ({self.grpo.group_size}): a service takes the "
                    "completions of a group together"
                )
        return self

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus completion."""
        return self.data.max_prompt_tokens + self.sampling.max_completion_tokens

    @property
    def max_model_len(self) -> int:
        """Context that the engine is started with, in tokens."""
        return self.generator.max_model_len or self.max_sequence_tokens
