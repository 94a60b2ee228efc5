"""RunConfig, the root of the configuration."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.adapter_way import check_adapter_way
from shoal.config.advantage import AdvantageConfig
from shoal.config.algorithm import GrpoConfig, SamplingConfig
from shoal.config.checkpoint import CheckpointConfig, check_best_metrics
from shoal.config.correct import check_filter
from shoal.config.correction import CorrectionConfig
from shoal.config.data import DataConfig
from shoal.config.deterministic import check_deterministic
from shoal.config.environments import EnvironmentConfig, check_environments
from shoal.config.episodes import PARSERS_THAT_STOP, EpisodesConfig, check_episodes
from shoal.config.evaluation import EvaluationConfig
from shoal.config.learner import LearnerConfig
from shoal.config.loss import KlConfig, LossConfig
from shoal.config.model import ModelConfig
from shoal.config.section import NEXT_STEP, Fixed, Section
from shoal.config.services import (
    CoordinatorConfig,
    GeneratorConfig,
    LaunchConfig,
    RewardConfig,
    WeightsConfig,
)
from shoal.config.tracking import TrackingConfig
from shoal.quantities import counted

MAX_RUN_NAME_CHARS = 63
RUN_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_RUN_NAME_CHARS - 1}}}")


class RunSection(Section):
    """The `[run]` table."""

    name: Annotated[str, Fixed("the run has its name")] = "run"
    """Prefix of the run id: at most 63 lower-case letters, digits, dots, underscores and dashes."""
    seed: Annotated[int, Fixed("the order of the prompts in the ledger follows from it")] = Field(
        default=0, ge=0, lt=2**53
    )
    """Seed of the data order, of every completion and of the learner."""
    deterministic: bool = False
    """Let a run that was interrupted and resumed equal one that was not, bit for bit but for times and rates. Needs
    CPUs, float32, `grpo.max_staleness` 0 and `num_threads`; costs throughput (docs/determinism.md)."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads with which each generator and each learner rank computes on a CPU; unset, the cores of a machine are
    shared out among them."""
    num_steps: Annotated[int, NEXT_STEP] = Field(default=100, ge=0, lt=2**53)
    """Train steps to take, at least 1; 0 stands for a number that `total_epochs` gives once the data are loaded. A
    resume with another number extends the run, also a finished one, or ends it earlier; the learning rate then follows
    the schedule of the new number."""
    total_episodes: Annotated[int | None, NEXT_STEP] = Field(default=None, ge=1, lt=2**53)
    """Total number of completions to train on, instead of `num_steps`, which becomes
    total_episodes // (grpo.groups_per_step x grpo.group_size). A resume that changes this size needs `num_steps`."""
    total_epochs: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0, lt=2**31)
    """Number of passes over the prompts that are short enough, instead of `num_steps`, which becomes
    total_epochs x (prompts // grpo.groups_per_step), rounded up, when the data are loaded. A resume that changes
    grpo.groups_per_step needs `num_steps`."""

    changed_data: Literal["refuse", "accept"] = "refuse"
    """Treatment of a resume for which a file, data set or task of `data.sources` is not what the run began with.
    `accept` goes on: other rows take the places of those that the ledger names, and prompts that were learned
    (`grpo.easy_rate`) stay out by their row. Another base model is refused in any case; of other held-out questions
    the run tells (docs/data.md)."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or a digit")
        return name


class RunConfig(Section):
    """Everything that determines a run, one section per concern.

    Each service receives all of it and reads the sections that it needs, so that nothing is copied.
    """

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

    @model_validator(mode="after")
    def _steps_follow_from_episodes(self) -> Self:
        if self.run.total_epochs is not None:
            return self._with_steps_of_epochs()
        if self.run.num_steps < 1:
            raise ValueError("run.num_steps: must be at least 1 (given: 0)")
        if self.run.total_episodes is None:
            return self
        per_step = self.grpo.groups_per_step * self.grpo.group_size
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
                f"{counted(num_steps, 'step')} of {counted(per_step, 'completion')}) differ: give one of them"
            )
        # The section is frozen for its users; its value is computed here.
        self.__dict__["run"] = self.run.model_copy(update={"num_steps": num_steps})
        return self

    def _with_steps_of_epochs(self) -> Self:
        if self.run.total_episodes is not None:
            raise ValueError("run.total_epochs: give it or run.total_episodes, not both")
        if "num_steps" not in self.run.model_fields_set:
            # The data decide; shoal.config.epochs counts them.
            self.__dict__["run"] = self.run.model_copy(update={"num_steps": 0})
        return self

    @field_validator("environments")
    @classmethod
    def _environments_have_one_name_each(cls, environments: list[EnvironmentConfig]) -> list[EnvironmentConfig]:
        check_environments(environments)
        return environments

    @model_validator(mode="after")
    def _context_holds_a_prompt_and_its_completion(self) -> Self:
        given = self.generator.max_model_len
        longest = self.data.max_prompt_tokens + self.max_completion_tokens
        if given is not None and given < longest:
            table = "sampling" if longest == self.max_sequence_tokens else "evaluation"
            raise ValueError(
                f"generator.max_model_len ({given}) must be at least data.max_prompt_tokens + "
                f"{table}.max_completion_tokens ({longest}): raise it, or leave it unset"
            )
        return self

    @model_validator(mode="after")
    def _queues_hold_a_group(self) -> Self:
        # A group that does not fit would be refused and retried until its deadline.
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
                    f"{names} ({room}) must be at least grpo.group_size ({self.grpo.group_size}): a service accepts "
                    "the completions of a group together"
                )
            if self.evaluation.sources and room < self.evaluation.samples_per_prompt:
                raise ValueError(
                    f"{names} ({room}) must be at least evaluation.samples_per_prompt "
                    f"({self.evaluation.samples_per_prompt}): a service accepts the answers to a question together"
                )
        return self

    @model_validator(mode="after")
    def _algorithm_parts_fit(self) -> Self:
        if self.grpo.group_size == 1 and self.advantage.baseline in ("group_mean", "leave_one_out", "second_best"):
            raise ValueError(
                f"grpo.group_size: must be at least 2 with advantage.baseline {self.advantage.baseline!r} (given: 1): "
                "a group of one has nothing to compare with"
            )
        if self.advantage.per_verifier and self.kl.place == "reward" and self.kl.reward_level == "completion":
            raise ValueError(
                'kl.reward_level "completion" subtracts the KL from the reward of a completion, and '
                'with advantage.per_verifier there is no single reward: use "token"'
            )
        for name, is_on in (
            ("advantage.per_verifier", self.advantage.per_verifier),
            ("advantage.partial_rewards", self.advantage.partial_rewards),
        ):
            if is_on and self.reward.shapes:
                raise ValueError(
                    f"{name} uses the verifiers' values one by one, before [reward] combines them: leave "
                    "reward.verification_reward, format, style, overlong, length, cosine, repetition and the others at "
                    "their defaults, and name r1_format, soft_overlong or repetition_penalty as verifiers in the data"
                )
        if self.correction.is_on and self.loss.baseline == "behavior":
            raise ValueError(
                "loss.baseline: correction compares the proximal policy with the behavior policy: set it to "
                '"proximal"; with "behavior" the ratio itself already uses the engine\'s probabilities'
            )
        return self

    @model_validator(mode="after")
    def _overlong_spares_short_completions(self) -> Self:
        overlong = self.reward.overlong
        limit = overlong.max_length_tokens or self.sampling.max_completion_tokens
        if overlong.factor and overlong.buffer_tokens > limit:
            field = (
                "reward.overlong.max_length_tokens" if overlong.max_length_tokens else "sampling.max_completion_tokens"
            )
            raise ValueError(
                f"reward.overlong.buffer_tokens ({overlong.buffer_tokens}) must be at most {field} ({limit}): "
                "otherwise even an empty completion is punished for its length"
            )
        return self

    @model_validator(mode="after")
    def _what_is_kept_is_evaluated(self) -> Self:
        check_best_metrics(self.checkpoint, self.evaluation)
        return self

    @model_validator(mode="after")
    def _every_rank_has_a_completion(self) -> Self:
        completions = self.grpo.groups_per_step // self.grpo.num_mini_batches * self.grpo.group_size
        ranks = self.launch.num_learner_ranks // self.learner.sequence_parallel_size
        if completions < ranks:
            raise ValueError(
                f"an optimizer step has {completions} completions for {ranks} ranks, too few for one each: raise "
                "grpo.groups_per_step, or lower launch.num_learner_ranks or grpo.num_mini_batches"
            )
        return self

    @model_validator(mode="after")
    def _learner_ranks_divide(self) -> Self:
        num_ranks = self.launch.num_learner_ranks
        for name in ("sequence_parallel_size", "zero_hpz_partition_size"):
            if num_ranks % getattr(self.learner, name):
                raise ValueError(
                    f"learner.{name} ({getattr(self.learner, name)}) must divide the learner's ranks, "
                    f"launch.num_learner_ranks ({num_ranks}): set these to the ranks that are started, "
                    "also with torchrun"
                )
        return self

    @model_validator(mode="after")
    def _schedule_fits_the_run(self) -> Self:
        self.learner.check_schedule(self.num_warmup_steps, self.num_optimizer_steps)
        return self

    @model_validator(mode="after")
    def _engines_can_take_adapters(self) -> Self:
        check_adapter_way(self.generator, self.learner.lora, self.weights)
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_deterministic(self)
        check_episodes(self)
        check_filter(self)
        return self

    @model_validator(mode="after")
    def _one_gpu_can_be_shared(self) -> Self:
        if self.generator.sleep_while_training and self.grpo.max_staleness > 0:
            raise ValueError(
                f"generator.sleep_while_training needs grpo.max_staleness 0 (it is {self.grpo.max_staleness}): above "
                "0 the generator samples while the learner trains"
            )
        if not self.launch.single_gpu:
            return self
        for name, count in {
            "launch.num_learner_ranks": self.launch.num_learner_ranks,
            "launch.num_generators": self.launch.num_generators,
            "generator.tensor_parallel_size": self.generator.tensor_parallel_size,
            "generator.pipeline_parallel_size": self.generator.pipeline_parallel_size,
        }.items():
            if count > 1:
                raise ValueError(f"launch.single_gpu takes one of each: {name} is {count}; set it to 1")
        if self.weights.backend == "nccl":
            raise ValueError(
                "launch.single_gpu: NCCL refuses two members on one GPU; set weights.backend to gloo or auto"
            )
        if self.generator.gpu_memory_utilization >= 0.9:
            raise ValueError(
                "launch.single_gpu: the learner needs a part of the GPU: set generator.gpu_memory_utilization below "
                f"0.9, for example 0.4 (it is {self.generator.gpu_memory_utilization})"
            )
        return self

    @model_validator(mode="after")
    def _reference_without_adapters_is_fixed(self) -> Self:
        if self.learner.lora.is_on and self.kl.reference_update_steps is not None:
            raise ValueError(
                "kl.reference_update_steps: with learner.lora the reference is the model without its adapters, which "
                "does not follow the policy; unset it, or set learner.lora.rank to 0"
            )
        return self

    @property
    def loads_reference(self) -> bool:
        """Whether the learner loads a second model as the reference: with adapters, the policy without them is it."""
        return self.kl.needs_reference and not self.learner.lora.is_on

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps of the run, if every step has all its mini-batches and none is skipped."""
        return self.run.num_steps * self.grpo.num_epochs * self.grpo.num_mini_batches

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
        """Whether engines have to look for strings in what they sample."""
        tags = self.plays_episodes and self.episodes.tool_parser in PARSERS_THAT_STOP
        return bool(self.sampling.stop_strings or tags or (self.evaluation.sources and self.evaluation.stop_strings))

    @property
    def plays_episodes(self) -> bool:
        """Whether prompts, or held-out questions, may be played in environments."""
        return any(source.names_environments for source in (*self.data.sources, *self.evaluation.sources))
