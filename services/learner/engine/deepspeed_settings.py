"""DeepSpeed's settings, their check against this machine, and the threads and kernels of a rank.

Other modules import `deepspeed` from here.
"""

import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

if not torch.cuda.is_available():
    # DeepSpeed would detect this by itself, but with a warning.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed as deepspeed
from deepspeed.runtime.torch_autocast import PARAM_COMM_DTYPE_ATTR_NAME

from shoal.config import RunConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.models.compute_dtype import settled_dtype

_BUCKET_ELEMENTS = 50_000_000
"""The highest number of gradient elements that are reduced at once. They take 200 MB, DeepSpeed's default 2 GB."""
_UNCHANGED_THREADS = torch.get_num_threads()
"""The number of threads that the environment sets."""

# Otherwise the last bits of MKL's products depend on the addresses of their matrices, which a restore may change. MKL
# reads this variable once, at the first product of the process.
os.environ.setdefault("MKL_CBWR", "AUTO")


def check_machine(config: LearnerConfig, *, device: torch.device, num_ranks: int) -> None:
    """Raises `InvalidArgument` for a setting that does not fit this machine or this number of ranks."""
    for name in ("offload_optimizer", "offload_parameters"):
        if getattr(config, name) and device.type == "cpu":
            raise InvalidArgument(
                f"learner.{name}: this learner has no GPU, so all state is already in host memory; set the field to "
                "false"
            )
    for name in ("sequence_parallel_size", "zero_hpz_partition_size"):
        size = getattr(config, name)
        if num_ranks % size:
            raise InvalidArgument(
                f"learner.{name} ({size}) must divide the number of the learner's ranks ({num_ranks}), since the ranks "
                "form groups of this size"
            )


def settle_on_machine(
    config: LearnerConfig, *, device: torch.device, num_ranks: int, zero_stage: int | None = None
) -> LearnerConfig:
    """Returns the settings with definite values of the ZeRO stage and the compute type.

    `zero_stage`, the stage of a checkpoint, replaces the configured stage. Raises the errors of `check_machine`.
    """
    check_machine(config, device=device, num_ranks=num_ranks)
    stage = config.stage_on(num_ranks) if zero_stage is None else zero_stage
    field, on_cpu = "learner.compute_dtype", device.type == "cpu"
    dtype = settled_dtype(field, config.compute_dtype, "bfloat16", on_cpu=on_cpu)
    return config.model_copy(update={"zero_stage": stage, "compute_dtype": dtype})


def policy_settings(config: LearnerConfig, *, num_trained: int, trains_every_parameter: bool = True) -> dict[str, Any]:
    """Returns DeepSpeed's configuration for a policy with `num_trained` trained values.

    `trains_every_parameter` is false if some trained parameters may have no gradient in a row, such as the parameters
    of an expert that the row does not use.
    """
    zero = policy_sharding(config) | {"reduce_bucket_size": min(_BUCKET_ELEMENTS, num_trained)}
    if config.zero_stage in (1, 2):
        # Each rank gets only the gradients that it applies: half the bytes of an all-reduce.
        zero["use_multi_rank_bucket_allreduce"] = False
        # A bucket is reduced while the backward pass computes the next. Offloading orders its copies by itself. Stage 1
        # would not reduce a gradient that earlier rows have, but the last row does not.
        zero["overlap_comm"] = not config.offload_optimizer and (trains_every_parameter or config.zero_stage == 2)
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    settings: dict[str, Any] = {
        # The learner counts rows: DeepSpeed sees one row at a time, and `backward` marks the last one.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        # Torch's fused AdamW also works on the host, and needs no compiler at the first start.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        # At stage 0 the learner clips: DeepSpeed would not report the norm.
        "gradient_clipping": 0.0 if config.zero_stage == 0 else config.max_grad_norm,
        "steps_per_print": 2**62,
    }
    if config.zero_stage == 3 and config.compute_dtype == "bfloat16":
        settings["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return settings


def reference_settings(config: LearnerConfig, *, dtype: torch.dtype) -> dict[str, Any]:
    """Returns DeepSpeed's configuration for a reference at stage 3, with weights of type `dtype`."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": reference_sharding(config),
        "bf16": {"enabled": dtype == torch.bfloat16},
    }


def policy_sharding(config: LearnerConfig) -> dict[str, Any]:
    """Returns the part of the policy's configuration that states how parameters are sharded."""
    zero = reference_sharding(config)
    if config.zero_hpz_partition_size > 1:
        zero["zero_hpz_partition_size"] = config.zero_hpz_partition_size
    return zero


def reference_sharding(config: LearnerConfig) -> dict[str, Any]:
    """Returns the sharding of a reference, without second copies of shards (hpZ): only a backward pass needs them."""
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return zero


def gather_in_bfloat16(modules: Iterable[torch.nn.Module]) -> None:
    """Makes `torch_autocast` gather the parameters of modules in bfloat16, as it gathers those of linear layers.

    The gathered parameters are float32 again, with rounded values. Small parameters stay whole on every rank.
    """
    for module in modules:
        for parameter in module.parameters(recurse=False):
            setattr(parameter, PARAM_COMM_DTYPE_ATTR_NAME, torch.bfloat16)


def sum_in_float32(sharding: Any) -> None:
    """Makes ranks add gradients in float32 at stage 3, where `torch_autocast` would add them in bfloat16.

    Sums of bfloat16 err by 0.7 % on 32 ranks and by 1.9 % on 256 ranks, while the gradients themselves err by 0.2 %.
    With `torch_autocast`, stage 3 ignores `communication_data_type`, so this wraps the method of every bucket.
    """
    name = "_DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads"
    average = getattr(sharding, name)

    def average_in_float32(parameters: list[torch.nn.Parameter], _: torch.dtype) -> list[torch.Tensor]:
        for parameter in parameters:
            parameter.grad.data = parameter.grad.float()
        averaged: list[torch.Tensor] = average(parameters, torch.float32)
        return averaged

    setattr(sharding, name, average_in_float32)


def release(engine: Any, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Destroys a DeepSpeed engine and releases its memory.

    At stage 3 the parameters' hooks keep the engine, the optimizer and each other alive, and garbage collection does
    not free them. A learner that returns to its first model would leak at least 16 bytes per parameter each time. So
    this function empties the large tensors itself.
    """
    engine.destroy()
    sharding, adam = engine.optimizer, engine.basic_optimizer
    if adam is not None:
        adam.state.clear()
        adam.param_groups.clear()
    if sharding is not None and sharding is not adam:
        vars(sharding).clear()
        engine.optimizer = None
    for parameter in parameters:
        parameter.grad = None
        # Small parameters stay whole, as views of this rank's whole buffer.
        parameter.data = torch.empty(0, dtype=parameter.dtype)
        for name in ("ds_tensor", "ds_secondary_tensor"):
            if (shard := getattr(parameter, name, None)) is not None:
                shard.data = torch.empty(0, dtype=shard.dtype)


def start_deepspeed(device: torch.device) -> None:
    """Initializes DeepSpeed on the existing process group. Repeated calls are safe."""
    # DeepSpeed uses deprecated names of two collectives, and torch warns at each call.
    warnings.filterwarnings("ignore", message="`torch.distributed.*is deprecated", category=FutureWarning)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # On a CPU DeepSpeed would spend most of a minute at the first start compiling this extension; gloo does without it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "gloo" if device.type == "cpu" else "nccl"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def settle_kernels(config: RunConfig, *, device: torch.device) -> None:
    """Applies `run.num_threads` and `run.deterministic` to this process. Call it in the thread that computes.

    Raises `InvalidArgument` for a deterministic run on a GPU.
    """
    is_deterministic = config.run.deterministic
    if is_deterministic and device.type != "cpu":
        raise InvalidArgument(
            "run.deterministic: this learner computes on a GPU, whose sums have no fixed order: set run.deterministic "
            "to false, or start the learner with CUDA_VISIBLE_DEVICES set to an empty value"
        )
    torch.set_num_threads(config.run.num_threads or _UNCHANGED_THREADS)
    torch.use_deterministic_algorithms(is_deterministic)
