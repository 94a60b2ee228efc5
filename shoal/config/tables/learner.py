"""The `[learner]` table: how the policy is stored and optimized."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.lora import LoraConfig
from shoal.config.tables.section import NEXT_STEP, Fixed, OptionOf, Section
from shoal.quantities import counted

Scheduler = Literal[
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
_CPU_CHUNK_TOKENS, _GPU_LOGITS_BYTES = 1024, 4 << 30
_ROW_TOKENS = 4096
_SHARDED = Fixed("the files of the checkpoint depend on this value")
WarmupShape = Literal["linear", "cosine", "1-sqrt"]


class LearnerConfig(Section):
    zero_stage: Annotated[Literal[0, 1, 2, 3] | None, _SHARDED] = None
    """DeepSpeed ZeRO stage. The stage decides what is sharded over the ranks: nothing (0), the optimizer state (1),
    also the gradients (2), also the parameters (3). Stages 0 and 1 reduce the gradients once an optimizer step, stages
    2 and 3 once a row. If unset, the stage is 0 on one rank, which has nothing to share. On several ranks it is 1, or
    the lowest stage that fits the memory of the GPUs; with `offload_optimizer` it is at least 2. A resume keeps the
    stage of the checkpoint."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward and backward passes. `auto` is bfloat16, but float32 on a CPU without instructions for
    bfloat16. Trained weights and optimizer state are always float32."""
    offload_optimizer: Annotated[bool, _SHARDED] = False
    """Keep and update float32 weights and optimizer state in the host's memory. Needs a ZeRO stage above 0."""
    offload_parameters: Annotated[bool, _SHARDED] = False
    """Keep sharded parameters in the host's memory until their use. Needs ZeRO stage 3 and `offload_optimizer`."""
    zero_hpz_partition_size: Annotated[int, _SHARDED] = Field(default=1, ge=1)
    """Number of ranks that together keep a second copy of the parameters for the backward pass, so that gathering the
    parameters stays within a node (ZeRO++, arXiv:2306.10209; DeepSpeed's zpg). Needs ZeRO stage 3. The number of
    learner ranks must be divisible by this number. 1 disables the copy."""
    sequence_parallel_size: Annotated[int, _SHARDED] = Field(default=1, ge=1)
    """Number of ranks that share the tokens of each packed row (DeepSpeed Ulysses, arXiv:2309.14509). Needs ZeRO stage
    3. The number of learner ranks and the number of the model's attention heads must be divisible by this number."""
    pack_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens in a packed row, over all ranks that share it. A longer sequence gets its own row. If
    unset, 4096 on a CPU, and on a GPU the largest of 4096, 8192 and 16384 that fits the GPU's memory."""
    logits_chunk_tokens: int | None = Field(default=None, ge=1)
    """Number of tokens whose logits are in memory at once. With several chunks in a row, the backward pass computes the
    logits again. If unset, 1024 on a CPU, and on a GPU as many tokens as have 4 GiB of logits."""
    learning_rate: Annotated[float, NEXT_STEP] = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay rate of the first moment."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay rate of the second moment."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    weight_decay_on_bias_and_norm: Annotated[bool, _SHARDED] = True
    """Also decay biases and the weights of norms."""
    fused_adam: Annotated[bool, _SHARDED] = True
    """Run AdamW as one kernel over all parameters, on GPU and CPU."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Maximum global norm of the gradients, to which larger gradients are scaled down. 0 sets no limit."""
    lr_scheduler: Scheduler = "constant"
    """Learning rate schedule of `transformers.get_scheduler` over optimizer steps; all but "constant" warm up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps during which the learning rate rises from 0; skipped steps do not count."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Warm-up as a share of the run's optimizer steps, rounded up, instead of `warmup_steps`."""
    lr_num_cycles: Annotated[
        float | None,
        OptionOf(
            "cosine", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"
        ),
    ] = Field(default=None, gt=0)
    """Number of cosine waves. If unset, the number is 0.5, which is one fall from the peak to the end. With
    cosine_with_restarts this is the number of falls, a whole number, and 1 if unset."""
    lr_min_ratio: Annotated[
        float | None, OptionOf("cosine_with_min_lr", "cosine_warmup_with_min_lr", "polynomial", "warmup_stable_decay")
    ] = Field(default=None, ge=0, lt=1)
    """Final learning rate as a share of the peak. cosine_with_min_lr and cosine_warmup_with_min_lr need this field.
    With polynomial and warmup_stable_decay the share is 0 if unset."""
    lr_warmup_start_ratio: Annotated[float | None, OptionOf("cosine_warmup_with_min_lr")] = Field(
        default=None, ge=0, lt=1
    )
    """Learning rate at the first step of cosine_warmup_with_min_lr, as a share of the peak. The last warm-up step
    reaches the peak. If unset, the share is 1 / warm-up steps."""
    lr_power: Annotated[float, OptionOf("polynomial")] = Field(default=1.0, gt=0)
    """Exponent of the `polynomial` schedule."""
    lr_timescale: Annotated[int | None, OptionOf("inverse_sqrt")] = Field(default=None, ge=1)
    """Number of steps in which the learning rate of inverse_sqrt falls by the square root of 2. If unset, the number is
    the number of warm-up steps, or 10,000 without a warm-up."""
    lr_decay_steps: Annotated[int | None, OptionOf("warmup_stable_decay")] = Field(default=None, ge=1)
    """Optimizer steps of the decay at the end of warmup_stable_decay, which needs this field."""
    lr_warmup_shape: Annotated[WarmupShape, OptionOf("warmup_stable_decay")] = "linear"
    """Shape of the learning rate's rise in warmup_stable_decay."""
    lr_decay_shape: Annotated[WarmupShape, OptionOf("warmup_stable_decay")] = "cosine"
    """Shape of the learning rate's fall in warmup_stable_decay."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass. This takes less memory and more time. If unset, false on a CPU, and
    on a GPU true only if the longest row of `pack_tokens` (4096 if unset) would not fit its memory otherwise."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """Attention implementation. `sdpa` uses torch's kernels, on a GPU its flash kernels. `eager` computes all scores.
    `auto` is eager for models that cap attention scores, such as Gemma 2, and sdpa for all others."""
    freeze: Annotated[list[str], _SHARDED] = Field(default_factory=list)
    """Prefixes of the names of parameters that are not trained, for example `["model.embed_tokens",
    "model.layers.0."]`. An entry with `*` is a pattern of whole names: `"*.mlp.gate.*"` is the router of every layer of
    Qwen3-30B-A3B. Such parameters have no gradient, no optimizer state and no place in a checkpoint, and are published
    and exported unchanged."""
    lora: LoraConfig = LoraConfig()

    @field_validator("attention", mode="before")
    @classmethod
    def _rename_flash(cls, value: object) -> object:
        # Configurations of earlier runs have this value. Torch's flash kernels have replaced the package.
        return "auto" if value == "flash_attention_2" else value

    def stage_on(self, num_ranks: int) -> Literal[0, 1, 2, 3]:
        """Returns the ZeRO stage of a learner with this number of ranks."""
        if self.zero_stage is not None:
            return self.zero_stage
        if self.offload_optimizer:
            return 2
        return 1 if num_ranks > 1 else 0

    @property
    def row_tokens(self) -> int:
        """The number of tokens `pack_tokens`; 4096 if unset. On a GPU, the learner sets another number."""
        return _ROW_TOKENS if self.pack_tokens is None else self.pack_tokens

    def chunk_tokens(self, bytes_per_token: int, *, on_cpu: bool) -> int:
        """Returns `logits_chunk_tokens`; if unset, its value for logits of `bytes_per_token` bytes."""
        if self.logits_chunk_tokens is not None:
            return self.logits_chunk_tokens
        return _CPU_CHUNK_TOKENS if on_cpu else max(_CPU_CHUNK_TOKENS, _GPU_LOGITS_BYTES // bytes_per_token)

    def check_schedule(self, num_warmup_steps: int, num_optimizer_steps: int) -> None:
        """Raises ValueError for parts of warmup_stable_decay that do not fit the run. Checks nothing if
        `num_optimizer_steps` is 0, which means that the number is not known yet."""
        if self.lr_scheduler != "warmup_stable_decay" or not num_optimizer_steps:
            return
        if num_warmup_steps + (self.lr_decay_steps or 0) > num_optimizer_steps:
            raise ValueError(
                f"learner.lr_decay_steps: {self.lr_decay_steps} and a warm-up of {num_warmup_steps} are more than "
                f"the run's {counted(num_optimizer_steps, 'optimizer step')}, so the learning rate would never "
                "reach its peak: lower one of the two, or raise run.num_steps"
            )

    @model_validator(mode="after")
    def _freezes_a_part(self) -> Self:
        if (everything := next((entry for entry in self.freeze if not entry.strip("*")), None)) is not None:
            raise ValueError(f'freeze has the entry "{everything}", which would freeze every parameter: remove it')
        if self.freeze and self.lora.is_on:
            raise ValueError(
                "freeze has no effect with lora, which freezes the whole model: remove freeze, or lora.rank"
            )
        return self

    @model_validator(mode="after")
    def _sharding_parts_fit(self) -> Self:
        stage = self.zero_stage
        given = "unset" if stage is None else stage
        if self.offload_optimizer and stage == 0:
            raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3 (it is 0): only ZeRO can offload")
        if self.offload_parameters and (stage != 3 or not self.offload_optimizer):
            raise ValueError(
                f"offload_parameters needs zero_stage 3 (it is {given}) and offload_optimizer: the parameters "
                "in the host's memory are copies of the optimizer's weights there"
            )
        for name in ("zero_hpz_partition_size", "sequence_parallel_size"):
            if getattr(self, name) > 1 and stage != 3:
                raise ValueError(f"{name} ({getattr(self, name)}) above 1 needs zero_stage 3 (it is {given})")
        return self

    @model_validator(mode="after")
    def _schedule_parts_fit(self) -> Self:
        self.check_options("lr_scheduler")
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ValueError(
                f"give warmup_steps ({self.warmup_steps}) or warmup_ratio ({self.warmup_ratio}), not both: each "
                "sets the length of the warm-up"
            )
        if self.lr_scheduler == "constant" and (self.warmup_steps or self.warmup_ratio):
            raise ValueError('lr_scheduler "constant" has no warm-up: choose "constant_with_warmup", or no warm-up')
        if self.lr_scheduler in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and self.lr_min_ratio is None:
            raise ValueError(f'lr_scheduler "{self.lr_scheduler}" needs lr_min_ratio, the final share of the peak')
        if self.lr_scheduler == "warmup_stable_decay" and self.lr_decay_steps is None:
            raise ValueError('lr_scheduler "warmup_stable_decay" needs lr_decay_steps, the length of the decay')
        if self.lr_scheduler == "cosine_with_restarts" and (self.lr_num_cycles or 1) % 1:
            raise ValueError(f"lr_num_cycles ({self.lr_num_cycles}) must be a whole number with cosine_with_restarts")
        return self
