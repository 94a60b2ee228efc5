"""RunTables: all tables of a configuration, and the values that follow from several tables."""

import math
from typing import Annotated

from pydantic import Field, field_validator

from shoal.config.tables.advantage import AdvantageConfig
from shoal.config.tables.checkpoint import CheckpointConfig
from shoal.config.tables.coordinator import CoordinatorConfig
from shoal.config.tables.correction import CorrectionConfig
from shoal.config.tables.data import DataConfig
from shoal.config.tables.environments import EnvironmentConfig
from shoal.config.tables.episodes import PARSERS_THAT_STOP, EpisodesConfig
from shoal.config.tables.evaluation import EvaluationConfig
from shoal.config.tables.generator import GeneratorConfig
from shoal.config.tables.grpo import GrpoConfig
from shoal.config.tables.kl import KlConfig
from shoal.config.tables.launch import LaunchConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.config.tables.loss import LossConfig
from shoal.config.tables.model import ModelConfig
from shoal.config.tables.reward import RewardConfig
from shoal.config.tables.run import RunSection
from shoal.config.tables.sampling import SamplingConfig
from shoal.config.tables.section import NEXT_STEP, Fixed, Section
from shoal.config.tables.tracking import TrackingConfig
from shoal.config.tables.weights import WeightsConfig


class RunTables(Section):
    """The tables of a run, each valid on its own. The tables of a `RunConfig` also fit together."""

    run: RunSection = RunSection()
    model: Annotated[ModelConfig, Fixed("the checkpoint holds the weights of this model")]
    data: Annotated[DataConfig, Fixed("the ledger counts positions in the order of these prompts")]
    sampling: SamplingConfig = SamplingConfig()
    grpo: GrpoConfig = GrpoConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: Annotated[LossConfig, NEXT_STEP] = LossConfig()
    kl: KlConfig = KlConfig()
    correction: Annotated[CorrectionConfig, NEXT_STEP] = CorrectionConfig()
    generator: GeneratorConfig = GeneratorConfig()
    reward: RewardConfig = RewardConfig()
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    episodes: EpisodesConfig = EpisodesConfig()
    learner: LearnerConfig = LearnerConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    launch: LaunchConfig = LaunchConfig()

    @field_validator("environments")
    @classmethod
    def _environments_have_one_name_each(cls, environments: list[EnvironmentConfig]) -> list[EnvironmentConfig]:
        names = [environment.name for environment in environments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is the name of two tables: choose another name for one of the tables")
        return environments

    @property
    def loads_reference(self) -> bool:
        """Whether the learner loads a second model as the reference. With adapters the frozen model serves as one."""
        return self.kl.needs_reference and not self.learner.lora.is_on

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps of the run, if every step has all its mini-batches and none is skipped."""
        return self.run.num_steps * self.grpo.optimizer_steps_per_step

    @property
    def data_parallel_size(self) -> int:
        """Learner ranks that process different rows: the ranks, divided by the number of ranks that share each row."""
        return self.launch.num_learner_ranks // self.learner.sequence_parallel_size

    @property
    def num_warmup_steps(self) -> int:
        """Optimizer steps during which the learning rate rises; `learner.warmup_ratio` is rounded up."""
        ratio = self.learner.warmup_ratio
        return self.learner.warmup_steps if ratio is None else math.ceil(self.num_optimizer_steps * ratio)

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum length of prompt plus completion."""
        return self.data.max_prompt_tokens + self.sampling.max_completion_tokens

    @property
    def max_completion_tokens(self) -> int:
        """Maximum length of a completion, in training and evaluations."""
        evaluated = self.evaluation.max_completion_tokens if self.evaluation.sources else None
        return max(self.sampling.max_completion_tokens, evaluated or 0)

    @property
    def max_model_len(self) -> int:
        """Context length of the engine, in tokens."""
        return self.generator.max_model_len or self.data.max_prompt_tokens + self.max_completion_tokens

    @property
    def has_stop_strings(self) -> bool:
        """Whether engines have to look for strings in the sampled text."""
        tags = self.plays_episodes and self.episodes.tool_parser in PARSERS_THAT_STOP
        return bool(self.sampling.stop_strings or tags or (self.evaluation.sources and self.evaluation.stop_strings))

    @property
    def plays_episodes(self) -> bool:
        """Whether prompts, or held-out questions, may be played in environments."""
        return any(source.names_environments for source in (*self.data.sources, *self.evaluation.sources))
