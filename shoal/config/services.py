"""The tables of the four services."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shoal.config.composition import (
    CosineLengthConfig,
    FormatRewardConfig,
    LengthPenaltyConfig,
    OverlongConfig,
    RepetitionPenaltyConfig,
    StyleConfig,
)
from shoal.config.correct import reaches_1, says_correct
from shoal.config.custom_verifiers import (
    CustomVerifierConfig,
    RewardServerConfig,
    check_names,
    free_names,
    installed_verifiers,
)
from shoal.config.judge import JudgeConfig
from shoal.config.reward_model import RewardModelConfig
from shoal.config.section import AT_ONCE, Section
from shoal.config.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, RULE_VERIFIERS, VerifiersConfig

EVERY_OTHER_NAME = "*"
"""In `reward.remap`, every name that the table does not have."""
_PUBLISH_S, _PUBLISHED_BYTES_PER_S = 60.0, 1e8
"""gloo from a GPU to another process sends 4e8 bytes a second, and more receivers share the rate."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters for which vLLM makes room. Others use the next higher one."""


class GeneratorConfig(Section):
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights. `auto` is the model's own, but float32 on a CPU without instructions for that
    type."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Maximum length of prompt plus completion; unset is `data.max_prompt_tokens + sampling.max_completion_tokens`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share each layer of a generator."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Stages into which a generator's layers are divided, each on its own GPUs."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that the engine uses. Not used on CPU."""
    gpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the key-value cache on each GPU, in GiB. Unset, vLLM measures what `gpu_memory_utilization` leaves; with
    `launch.single_gpu`, where the learner would disturb the measurement, it is computed from the model's sizes."""
    cpu_kv_cache_gib: float = Field(default=1.0, gt=0)
    """Size of the key-value cache on CPU, in GiB."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Maximum number of completions that are decoded at once."""
    max_queued_requests: int = Field(default=1024, ge=1)
    """Maximum number of completions that wait; more are refused with RESOURCE_EXHAUSTED."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs. Starts faster, samples slower. Always on for CPU."""
    sleep_while_training: bool = False
    """Release the GPU's memory while the learner trains on it: moves the weights to the host's memory and discards the
    key-value cache. Needs a GPU, and `grpo.max_staleness` 0."""
    lora: Literal["merged", "adapter"] = "merged"
    """How the policy of `learner.lora` gets into the engine. `merged` publishes all weights, with the adapters added to
    them: sampling costs nothing more. `adapter` publishes the adapters alone, some MB, while the engine samples, and
    each completion ends under the version that it began with: sampling costs more, on a CPU several times as much."""
    keep_stale_kv: bool = False
    """Keep the key-value cache of running requests across a weight update instead of recomputing it. Faster, but their
    log-probabilities then belong to no single policy. Requests that begin after the update share nothing with it."""
    report_every_tokens: Annotated[int, AT_ONCE] = Field(default=256, ge=0)
    """Tokens of an unfinished completion after which a generator reports them. A completion that is lost with its
    generator goes on elsewhere from its last report. 0 reports nothing: then a group that is lost is sampled again,
    whole, as with `run.deterministic`."""


class RewardConfig(Section):
    num_processes: int = Field(default=2, ge=1)
    """Verifier processes of one reward service."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time limit of one verifier for one completion; after it the process is killed and the outcome is FAILED."""
    max_queued: int = Field(default=4096, ge=1)
    """Maximum number of completions that wait; more are refused with RESOURCE_EXHAUSTED."""
    max_failed_share: float = Field(default=0.5, gt=0, le=1)
    """Pause the run when a verifier or an environment FAILED on more than this share of its latest completions, so that
    the run does not train through an outage. 1 never pauses."""
    outage_window: int = Field(default=64, ge=1)
    """Latest completions of each verifier and environment over which `max_failed_share` is measured."""
    verification_reward: float = Field(default=1.0, ge=0)
    """Factor of the weighted sum of the verifiers' values."""
    apply_verifiable_reward: bool = True
    """Include the verifiers' values in the reward. Otherwise they are only computed and reported, and the reward
    consists of the parts below."""
    only_reward_good_outputs: bool = False
    """Include the verifiers' values only for completions that ended by themselves and are not empty."""
    non_stop_penalty: float | None = None
    """Reward of a completion that did not end by itself; replaces everything else."""
    remap: dict[str, str] = Field(default_factory=dict)
    """Names in the data's verifier column -> verifiers that replace them (open-instruct's `remap_verifier`). `*` is
    every name that the table does not have."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Verifier -> factor of its values, in addition to the weight of the source; 1 by default."""
    format: FormatRewardConfig = FormatRewardConfig()
    """A reward for the required format."""
    style: StyleConfig = StyleConfig()
    """Rewards for tags and for signs of steps."""
    overlong: OverlongConfig = OverlongConfig()
    """A penalty for completions near the length limit."""
    length: LengthPenaltyConfig = LengthPenaltyConfig()
    """A penalty that grows with length."""
    cosine: CosineLengthConfig = CosineLengthConfig()
    """A reward that depends on length and correctness."""
    repetition: RepetitionPenaltyConfig = RepetitionPenaltyConfig()
    """A penalty for repetition."""
    verifiers: VerifiersConfig = VerifiersConfig()
    """Options of verifiers, by name."""
    correct: list[str] = Field(default_factory=list)
    """Verifiers that say whether a completion is correct: where it has values of several of them, each must be at least
    1. If empty, all that can reach 1, but for `max_length`, `reasoning_steps` and `reward_model`. Custom verifiers
    and those of other servers count among these. Metrics, `grpo.difficulty_low` and the like, `length` and `cosine`
    go by it."""
    keep_thoughts: list[str] = Field(default_factory=list)
    """Built-in verifiers that judge thoughts as well. The others judge what a completion has outside of its thoughts,
    and give an unfinished thought nothing (docs/rewards.md has the marks). Verifiers of form and length, and your own,
    always get the whole text."""
    judge: JudgeConfig = JudgeConfig()
    """The language model behind the labels that need one: `general-*`, `rubric`, `llm_judge`."""
    model: RewardModelConfig = RewardModelConfig()
    """The reward model behind the label `reward_model`."""
    custom: dict[str, CustomVerifierConfig] = Field(default_factory=dict)
    """Custom verifiers, by the names that the data uses."""
    servers: dict[str, RewardServerConfig] = Field(default_factory=dict)
    """Other servers whose verifiers are used, by names of your choice."""

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
    def _names_are_in_lower_case(cls, table: dict[str, Any]) -> dict[str, Any]:
        # The names in the data are read in lower case, too.
        return {name.lower(): value.lower() if isinstance(value, str) else value for name, value in table.items()}

    @field_validator("correct")
    @classmethod
    def _can_be_said(cls, correct: list[str], info: ValidationInfo) -> list[str]:
        names = [name.lower() for name in correct]
        options = info.data.get("verifiers", VerifiersConfig())
        if never := [name for name in names if not reaches_1(options, name)]:
            raise ValueError(
                f"{never[0]!r} cannot say that a completion is correct: its best value is below 1. Name verifiers that "
                "judge answers, or leave it out"
            )
        return names

    @field_validator("keep_thoughts")
    @classmethod
    def _keepers_are_built_in(cls, names: list[str]) -> list[str]:
        names = [name.lower() for name in names]
        if unknown := sorted({*names} - (RULE_VERIFIERS | JUDGE_VERIFIERS)):
            raise ValueError(
                f"{', '.join(unknown)}: no built-in verifier or judge of this name reads answers; your own verifiers "
                "always get the whole text, and reward.model.after_thoughts decides what a reward model is shown"
            )
        return names

    def says_correct(self, verifier: str) -> bool:
        """Whether a verifier takes part in the verdict on what is correct."""
        return says_correct(self.correct, self.verifiers, verifier)

    @property
    def verifiers_here(self) -> frozenset[str]:
        """Names of verifiers that are known without asking a server."""
        declared = [name for server in self.servers.values() for name in server.verifiers]
        return BUILT_IN_VERIFIERS | installed_verifiers() | self.custom.keys() | frozenset(declared)

    @property
    def known_verifiers(self) -> frozenset[str] | None:
        """Names that data may use; None where a server has yet to list its own."""
        return self.verifiers_here if all(server.verifiers for server in self.servers.values()) else None

    @property
    def shapes(self) -> bool:
        """Whether the reward is more than the weighted sum of the verifiers' values."""
        return (
            self.verification_reward != 1
            or not self.apply_verifiable_reward
            or self.only_reward_good_outputs
            or self.non_stop_penalty is not None
            or self.format.kind != "none"
            or any((self.style.tags, self.style.steps, self.overlong.factor, self.length.coef))
            or any((self.cosine.factor, self.repetition.max_penalty))
        )


class CoordinatorConfig(Section):
    worker_timeout_s: float = Field(default=300.0, gt=0)
    """Maximum wait for a worker of each kind to register and load, at the start and whenever none is left."""
    sampling_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Maximum time to sample and score one group, from its first token on: time in a queue does not count. Unset is 600
    s, or 0.1 s for each token of the longest completion, or five times what the slowest one of late would have taken
    for so many tokens, whichever is most. After it the group is issued once more, then dropped. A generator that
    does not begin a group for as long gets weights again before it serves, and the group another generator."""
    max_group_losses: int = Field(default=3, ge=1)
    """Times that sampling or scoring one group may fail, because its generator died or a service failed on it, before
    it is dropped. It is tried again after pauses of 0.5 s, 1 s, 2 s, and so on. The count begins anew when every
    completion that is not finished has come further, as `generator.report_every_tokens` tells: so kills at random do
    not add up, and a prompt that kills engines is dropped. In an episode it counts for each turn."""
    train_step_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Maximum time of one train step. Unset is an hour, or 1 ms for each token of the step, or five times what the
    slowest step of late would have taken for so many tokens, whichever is most. A learner that takes longer hangs:
    it ends itself, and the run goes on from its last checkpoint once it is back."""
    max_restarts: int = Field(default=10, ge=0)
    """Times that a run goes on by itself from its last checkpoint, after its learner or its coordinator was lost,
    without a step in between that is new. Then it fails, with the reasons. The pauses before such restarts grow."""


class WeightsConfig(Section):
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the broadcast group; `auto` is nccl if the learner has its own GPU, else gloo."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the tensors on the wire. `auto` is `generator.dtype`; where that is "auto" too, it is the model's own, or
    float32 from a learner on a CPU without instructions for that type."""
    store_port: int = Field(default=0, ge=0, le=65535)
    """Port of the group's TCPStore on the learner; 0 takes a free one. Set it if there is a firewall in between."""
    inflight_updates: bool = True
    """Update weights under running completions, which pause and continue with the new weights. `false` lets each
    publish wait until no completion is being sampled, so that every completion is drawn from a single policy; the
    generators then idle until the longest one has ended."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of one publish attempt. Unset is 60 s and 10 s for each GB of weights. After it the group is aborted,
    and a new one serves the generators that are not at fault."""
    ready_timeout_s: float = Field(default=5.0, gt=0)
    """Time for generators to pause and be ready to receive; slower ones are left out of the epoch. While a publish
    takes longer, generators are asked for their status as often, and left out if they do not answer. One that answers
    and hangs is left out after ten times as long as the last publish took, and 7 s more than this time at least."""
    max_failed_loads: int = Field(default=5, ge=1)
    """Loads in a row that a generator may fail. It is left out of the first and tried again alone after pauses of 5 s,
    10 s, and so on up to 300 s; after the last it is quarantined, and gets no weights until it registers again."""
    canary_tolerance: float | None = Field(default=None, gt=0)
    """Largest accepted difference between engine and learner on the canary prompt: mean absolute difference of the
    log-probabilities, in nats. Above it the load has failed. Unset, it is 0.001 where both compute in float32, else
    0.4: correct weights differ by up to 1e-5 in float32 and 0.14 in bfloat16. After the first load of an engine, twice
    what there was before and an eighth of the tolerance is accepted."""

    def timeout_for(self, num_bytes: int) -> float:
        """Returns the deadline of a publish of that many bytes, in seconds."""
        return _PUBLISH_S + num_bytes / _PUBLISHED_BYTES_PER_S if self.timeout_s is None else self.timeout_s


class LaunchConfig(Section):
    """Processes that `shoal train` starts on this machine. Elsewhere the deployment decides their number."""

    num_generators: int = Field(default=1, ge=1)
    """Generator processes."""
    num_rewards: int = Field(default=1, ge=1)
    """Reward processes."""
    num_learner_ranks: int = Field(default=1, ge=1)
    """Learner processes. A run may be resumed with another number of them."""
    single_gpu: bool = False
    """Let one learner rank and one generator share the first GPU. Weights travel by gloo, since NCCL refuses two
    members on one GPU. `generator.gpu_memory_utilization` must leave memory for the learner."""
    coordinator_port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator; 0 takes a free one."""
