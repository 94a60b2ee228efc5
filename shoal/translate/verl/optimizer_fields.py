"""verl's settings of the optimizers of Megatron, veOmni and torchtitan, one row each."""

from shoal.translate.shared.field import Field, accepted, each, ignored, mapped, refused
from shoal.translate.verl.names import ACTOR

_OPTIM = f"{ACTOR}.optim"
_MEMORY = "where the optimizer's states are kept: learner.offload_optimizer and learner.zero_stage"
_STATES = "the optimizer's states are float32"
_NOT_CONSTANT = "give actor.optim.lr_scheduler_type, min_lr_ratio and lr_warmup_steps, or --set learner.lr_scheduler"

OPTIMIZER: list[Field] = [
    mapped(f"{_OPTIM}.eps", "number", 1e-8, "learner.adam_eps"),
    accepted(f"{_OPTIM}.lr_decay_style", "text", "constant", ["constant"], _NOT_CONSTANT),
    *each(
        accepted(f"{_OPTIM}.", "number", 0.0, [0.0, None], _NOT_CONSTANT),
        "min_lr lr_min lr_start lr_warmup_init min_lr_factor",
    ),
    *each(
        ignored(f"{_OPTIM}.", "an option of other schedules than the constant one"),
        "lr_decay_steps lr_decay_ratio lr_wsd_decay_style lr_wsd_decay_steps decay_type",
    ),
    accepted(
        f"{_OPTIM}.weight_decay_incr_style", "text", "constant", ["constant"], "learner.weight_decay stays the same"
    ),
    ignored(f"{_OPTIM}.use_checkpoint_opt_param_scheduler", "a resume follows the schedule of its configuration"),
    *each(
        accepted(f"{_OPTIM}.", "text", "fp32", ["fp32", None], _STATES),
        "main_grads_dtype exp_avg_dtype exp_avg_sq_dtype",
    ),
    *each(
        ignored(f"{_OPTIM}.", _MEMORY),
        "use_layer_wise_distributed_optimizer use_precision_aware_optimizer "
        "override_optimizer_config.optimizer_offload_fraction override_optimizer_config.optimizer_cpu_offload "
        "override_optimizer_config.overlap_cpu_optimizer_d2h_h2d "
        "override_optimizer_config.use_precision_aware_optimizer",
    ),
    *each(
        ignored(f"{_OPTIM}.muon_", "an option of Muon, which is refused at actor.optim.optimizer"),
        "momentum nesterov split_qkv scale_mode coefficient_type num_ns_steps tp_mode fp32_matmul_prec "
        "extra_scale_factor scalar_optimizer match_adamw_update_rms",
    ),
    refused(
        f"{_OPTIM}.override_optimizer_config.*",
        "any",
        None,
        "give AdamW's settings by actor.optim.betas and the fields beside it",
    ),
    ignored(f"{_OPTIM}.override_optimizer_config", "the table is empty"),
]
"""Fields of these optimizers, in addition to FSDP's in `fields.py`."""
