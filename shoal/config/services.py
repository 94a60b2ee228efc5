"""The tables of the four services."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.composition import (
    CosineLengthConfig,
    FormatRewardConfig,
    LengthPenaltyConfig,
    OverlongConfig,
    RepetitionPenaltyConfig,
)
from shoal.config.judge import JudgeConfig
from shoal.config.own_verifiers import CustomVerifierConfig, RewardServerConfig, check_names, free_names
from shoal.config.reward_model import RewardModelConfig
from shoal.config.section import Section
from shoal.config.verifiers import VerifiersConfig
from shoal.verifiers import BUILT_IN_VERIFIERS, installed_verifiers


class GeneratorConfig(Section):
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights; `auto` takes the model's own."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Longest prompt plus completion; unset is `data.max_prompt_tokens + sampling.max_completion_tokens`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share each layer of one generator."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Groups of layers of one generator, each on GPUs of its own."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that the engine takes. Not used on CPU."""
    cpu_kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for the key-value cache on CPU."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Most completions that are decoded at once."""
    max_queued_requests: int = Field(default=1024, ge=1)
    """Completions that may wait beyond those decoded; more are refused with RESOURCE_EXHAUSTED."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs. Starts faster, samples slower. Always on for CPU."""
    sleep_while_training: bool = False
    """Give the GPU's memory back while the learner trains on it: the weights go to the host's memory, the key-value
    cache goes. Needs a GPU, and `grpo.max_staleness` 0."""
    keep_stale_kv: bool = False
    """Keep the key-value cache of requests in flight over a weight update instead of recomputing it. Faster,
    but their log-probabilities are then of no one policy."""


class RewardConfig(Section):
    num_processes: int = Field(default=2, ge=1)
    """Verifier processes of one reward service."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Longest time for one verifier on one completion; past it the process is killed and the outcome is FAILED."""
    max_queued: int = Field(default=4096, ge=1)
    """Completions that may wait; more are refused with RESOURCE_EXHAUSTED."""
    max_failed_share: float = Field(default=0.5, gt=0, le=1)
    """The run is paused when a verifier FAILED on more than this share of its latest completions: an outage is not
    trained on. 1 never pauses."""
    outage_window: int = Field(default=64, ge=1)
    """Completions of each verifier that this share is taken of."""
    verification_reward: float = Field(default=1.0, ge=0)
    """Factor of the weighted sum of the verifiers' values."""
    apply_verifiable_reward: bool = True
    """Pay what verifiers say. Otherwise they are asked and reported, and only the parts below pay."""
    only_reward_good_outputs: bool = False
    """Pay what verifiers say only of completions that ended by themselves and are not empty."""
    non_stop_penalty: float | None = None
    """The whole reward of a completion that did not end by itself, in place of all else."""
    remap: dict[str, str] = Field(default_factory=dict)
    """Names of the data's verifier column -> verifiers to use in their place (open-instruct's `remap_verifier`)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Verifier -> factor of its values, beside the weight of the source; 1 for those not named."""
    format: FormatRewardConfig = FormatRewardConfig()
    """A form that is asked for."""
    overlong: OverlongConfig = OverlongConfig()
    """A penalty near the length limit."""
    length: LengthPenaltyConfig = LengthPenaltyConfig()
    """A penalty by length."""
    cosine: CosineLengthConfig = CosineLengthConfig()
    """A reward by length and correctness."""
    repetition: RepetitionPenaltyConfig = RepetitionPenaltyConfig()
    """A penalty for repetition."""
    verifiers: VerifiersConfig = VerifiersConfig()
    """Options of verifiers, by their names."""
    judge: JudgeConfig = JudgeConfig()
    """The language model behind the labels that need one: `general-*`, `rubric`, `llm_judge`."""
    model: RewardModelConfig = RewardModelConfig()
    """The reward model behind the label `reward_model`."""
    custom: dict[str, CustomVerifierConfig] = Field(default_factory=dict)
    """Verifiers of yours, by the names that the data has for them."""
    servers: dict[str, RewardServerConfig] = Field(default_factory=dict)
    """Other servers whose verifiers are used, by any names."""

    @field_validator("custom")
    @classmethod
    def _names_are_free(cls, custom: dict[str, CustomVerifierConfig]) -> dict[str, CustomVerifierConfig]:
        return free_names(custom)

    @model_validator(mode="after")
    def _names_have_one_owner(self) -> Self:
        check_names(self.custom, self.servers)
        return self

    @field_validator("remap", "weights")
    @classmethod
    def _names_are_in_lower_case(cls, given: dict[str, Any]) -> dict[str, Any]:
        # As those of the data are read.
        return {name.lower(): value.lower() if isinstance(value, str) else value for name, value in given.items()}

    @property
    def verifiers_here(self) -> frozenset[str]:
        """Names of verifiers that are known without asking anybody."""
        declared = [name for server in self.servers.values() for name in server.verifiers]
        return BUILT_IN_VERIFIERS | installed_verifiers() | self.custom.keys() | frozenset(declared)

    @property
    def known_verifiers(self) -> frozenset[str] | None:
        """Names that data may have; None where a server has still to be asked for its own."""
        return self.verifiers_here if all(server.verifiers for server in self.servers.values()) else None

    @property
    def shapes(self) -> bool:
        """Whether a reward is more than its verifiers' values by their weights."""
        return (
            self.verification_reward != 1
            or not self.apply_verifiable_reward
            or self.only_reward_good_outputs
            or self.non_stop_penalty is not None
            or self.format.kind != "none"
            or any((self.overlong.factor, self.length.coef, self.cosine.factor, self.repetition.max_penalty))
        )


class CoordinatorConfig(Section):
    worker_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for workers of each kind to register and load, at the start and whenever none is left."""
    sampling_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time for sampling and scoring one group. Past it the group is issued once more, then dropped."""
    train_step_timeout_s: float = Field(default=3600.0, gt=0)
    """Longest time for one train step."""


class WeightsConfig(Section):
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the broadcast group; `auto` is nccl when the learner has a GPU of its own, else gloo."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the tensors on the wire; `auto` is the generators' `generator.dtype`, or the model's own."""
    store_port: int = Field(default=0, ge=0, le=65535)
    """Port of the group's TCPStore on the learner; 0 takes a free one. Fix it where a firewall stands between."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of one publish attempt. Past it the group is aborted and the generators that answer get another."""
    ready_timeout_s: float = Field(default=5.0, gt=0)
    """Time that generators have to pause and receive; laggards are cut from the epoch."""
    canary_tolerance: float = Field(default=0.5, gt=0)
    """Mean absolute difference between engine and learner on the log-probabilities of the canary prompt, in nats,
    beyond which a load has failed. bfloat16 makes about 0.1; wrong weights make several."""


class LaunchConfig(Section):
    """What `shoal train` starts on this machine. Elsewhere the number of processes is the deployment's."""

    num_generators: int = Field(default=1, ge=1)
    """Generator processes."""
    num_rewards: int = Field(default=1, ge=1)
    """Reward processes."""
    num_learner_ranks: int = Field(default=1, ge=1)
    """Learner processes."""
    single_gpu: bool = False
    """One learner rank and one generator share the first GPU; weights travel by gloo, since NCCL refuses two members
    on one GPU. `generator.gpu_memory_utilization` has to leave the learner room."""
    coordinator_port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator; 0 takes a free one."""
