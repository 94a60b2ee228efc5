"""The `[learner]` table: how the policy is held, and how it is optimized."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section

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
WarmupShape = Literal["linear", "cosine", "1-sqrt"]
_USED_BY: dict[str, tuple[str, ...]] = {
    "lr_num_cycles": (
        "cosine",
        "cosine_with_restarts",
        "cosine_with_min_lr",
        "cosine_warmup_with_min_lr",
        "warmup_stable_decay",
    ),
    "lr_min_ratio": ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "polynomial", "warmup_stable_decay"),
    "lr_warmup_start_ratio": ("cosine_warmup_with_min_lr",),
    "lr_power": ("polynomial",),
    "lr_timescale": ("inverse_sqrt",),
    "lr_decay_steps": ("warmup_stable_decay",),
    "lr_warmup_shape": ("warmup_stable_decay",),
    "lr_decay_shape": ("warmup_stable_decay",),
}


class LearnerConfig(Section):
    zero_stage: Literal[0, 1, 2, 3] = 2
    """DeepSpeed ZeRO stage: what is sharded over the ranks (nothing, optimizer, + gradients, + parameters)."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of forward and backward. Master weights and optimizer are always float32."""
    offload_optimizer: bool = False
    """Hold float32 weights and optimizer in the host's memory and update them there; needs a ZeRO stage above 0."""
    offload_parameters: bool = False
    """Hold sharded parameters in the host's memory until they are used; needs ZeRO stage 3 and `offload_optimizer`."""
    zero_hpz_partition_size: int = Field(default=1, ge=1)
    """ZeRO stage 3: ranks that together keep a second copy of the parameters for the backward pass, so that they are
    gathered within a node (ZeRO++, arXiv:2306.10209; DeepSpeed's zpg). Divides the ranks; 1 is off."""
    sequence_parallel_size: int = Field(default=1, ge=1)
    """Ranks that share the tokens of each packed row (DeepSpeed Ulysses, arXiv:2309.14509). Needs ZeRO stage 3;
    divides the ranks and the model's attention heads."""
    pack_tokens: int = Field(default=4096, ge=1)
    """Most tokens in one packed row, on all ranks that share it. A longer sequence gets a row of its own."""
    logits_chunk_tokens: int = Field(default=1024, ge=1)
    """Tokens whose logits exist at once."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the first moment."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the second moment."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    weight_decay_on_bias_and_norm: bool = True
    """Decay biases and the weights of norms as well."""
    fused_adam: bool = True
    """AdamW as one kernel over all parameters, on GPU and CPU."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Gradients are scaled down to this global norm; 0 leaves them."""
    lr_scheduler: Scheduler = "constant"
    """Course of the learning rate over the run's optimizer steps, as `transformers.get_scheduler` has it. "constant"
    has no warm-up; every other has."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps, of those really taken, in which the learning rate rises from 0."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """In place of `warmup_steps`: the share of the run's optimizer steps, rounded up."""
    lr_num_cycles: float | None = Field(default=None, gt=0)
    """Waves of a cosine; unset is 0.5, from the peak to the end. With cosine_with_restarts the number of falls, a
    whole number; unset is 1."""
    lr_min_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Share of the peak that the learning rate ends at (cosine_with_min_lr and cosine_warmup_with_min_lr need it;
    polynomial and warmup_stable_decay: 0 when unset)."""
    lr_warmup_start_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Share of the peak at the first step of cosine_warmup_with_min_lr, whose warm-up reaches the peak at its last;
    unset is one step's share of the warm-up."""
    lr_power: float = Field(default=1.0, gt=0)
    """Exponent of polynomial."""
    lr_timescale: int | None = Field(default=None, ge=1)
    """Steps in which inverse_sqrt falls by the square root of 2; unset is the warm-up's, or 10,000 without one."""
    lr_decay_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of the decay at the end of warmup_stable_decay, which needs it."""
    lr_warmup_shape: WarmupShape = "linear"
    """How warmup_stable_decay rises."""
    lr_decay_shape: WarmupShape = "cosine"
    """How warmup_stable_decay falls."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = "auto"
    """Attention implementation. `auto` is flash_attention_2 where it is installed and a GPU is there, else
    sdpa."""

    @model_validator(mode="after")
    def _sharding_parts_fit(self) -> Self:
        stage = self.zero_stage
        if self.offload_optimizer and stage == 0:
            raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3 (it is 0): only ZeRO can offload")
        if self.offload_parameters and (stage != 3 or not self.offload_optimizer):
            raise ValueError(
                f"offload_parameters needs zero_stage 3 (it is {stage}) and offload_optimizer: what stays in the "
                "host's memory is the shards, and the weights that they are copied from"
            )
        for name in ("zero_hpz_partition_size", "sequence_parallel_size"):
            if getattr(self, name) > 1 and stage != 3:
                raise ValueError(f"{name} ({getattr(self, name)}) above 1 needs zero_stage 3 (it is {stage})")
        return self

    @model_validator(mode="after")
    def _schedule_parts_fit(self) -> Self:
        for name, schedulers in _USED_BY.items():
            if self.lr_scheduler not in schedulers and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is an option of lr_scheduler {' and '.join(schedulers)}; it is {self.lr_scheduler}: drop "
                    f"{name}, or choose one of these"
                )
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ValueError(
                f"give warmup_steps ({self.warmup_steps}) or warmup_ratio ({self.warmup_ratio}), not both: each says "
                "how long the learning rate rises"
            )
        if self.lr_scheduler == "constant" and (self.warmup_steps or self.warmup_ratio):
            raise ValueError('lr_scheduler "constant" has no warm-up: choose "constant_with_warmup", or drop it')
        if self.lr_scheduler in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and self.lr_min_ratio is None:
            raise ValueError(f'lr_scheduler "{self.lr_scheduler}" needs lr_min_ratio, the share of the peak to end at')
        if self.lr_scheduler == "warmup_stable_decay" and self.lr_decay_steps is None:
            raise ValueError('lr_scheduler "warmup_stable_decay" needs lr_decay_steps, the length of the decay')
        if self.lr_scheduler == "cosine_with_restarts" and (self.lr_num_cycles or 1) % 1:
            raise ValueError(f"lr_num_cycles ({self.lr_num_cycles}) must be a whole number of falls with restarts")
        return self
