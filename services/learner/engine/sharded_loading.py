"""Loading a model from its files, which are mapped into memory: each rank reads what it keeps.

Up to ZeRO stage 2 a rank copies each tensor to its device. At stage 3 the model is sharded while it is made, and a rank
copies its shards: no rank ever holds the whole model.
"""

import ctypes
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from services.learner.engine.deepspeed_settings import deepspeed, start_deepspeed
from services.learner.model.language_model import load_whole, make_empty, read_config
from services.learner.model.machine_errors import raise_machine_error
from services.learner.model.weight_files import WeightFiles, find_weight_files
from services.learner.model.weights import whole_shape
from services.learner.ranks.process_group import ProcessGroup
from shoal.config.tables.lora import Quantization
from shoal.errors import InvalidArgument

_log = logging.getLogger(__name__)
_M_MMAP_THRESHOLD = -3
"""A parameter of mallopt(3). The threshold no longer adapts after it has been set."""
_THRESHOLD_SETTING = "MALLOC_MMAP_THRESHOLD_"
_MAPPED_BYTES = 4 << 20
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_model(
    folder: Path,
    dtype: torch.dtype,
    *,
    sharding: dict[str, Any],
    process_group: ProcessGroup,
    trust_remote_code: bool = False,
    quantization: Quantization = "none",
) -> Any:
    """Loads a language model in the type `dtype`: sharded at stage 3, else whole onto the device of every rank.

    `sharding` is DeepSpeed's `zero_optimization`. At every stage, transformers loads the whole model into host memory
    if the model is quantized, or if files and parameters differ in form; at stage 3 a difference in form is logged as a
    warning. Call this function on all ranks. Raises, on every rank alike, `InvalidArgument` for a folder that cannot be
    loaded, and `ResourceExhausted` if a rank has too little memory.
    """
    shards = sharding["stage"] == 3
    if shards:
        _map_large_tensors()
    if quantization == "none" and _can_read(
        folder, process_group, trust_remote_code=trust_remote_code, level=logging.WARNING if shards else logging.INFO
    ):
        if shards:
            return _load_sharded(folder, dtype, sharding, process_group, trust_remote_code=trust_remote_code)
        return _load_onto_device(folder, dtype, process_group, trust_remote_code=trust_remote_code)
    with process_group.raising_on_all():
        return load_whole(folder, dtype, trust_remote_code=trust_remote_code, quantization=quantization)


def _map_large_tensors() -> None:
    """Gives each large tensor on the host separate memory pages, which return to the system when the tensor is freed.

    glibc would soon put tensors of up to 32 MiB into its heap, where gathered and freed tensors leave holes among the
    shards: a rank of a model of 0.2B parameters used a tenth more memory. Other C libraries are not changed, and
    neither is a threshold that the environment sets. For small layers a lower threshold uses a third less.
    """
    if _THRESHOLD_SETTING in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _can_read(folder: Path, process_group: ProcessGroup, *, trust_remote_code: bool, level: int) -> bool:
    """Returns whether every rank can read parameters from the files that the rank sees. Logs an obstacle at `level`."""
    try:
        obstacle = shard_obstacle(folder, trust_remote_code=trust_remote_code)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        obstacle = f"the model's files cannot be read: {error}"
    obstacles = [text.decode() for text in process_group.all_gather((obstacle or "").encode())]
    first = next(filter(None, obstacles), None)
    if first is not None and process_group.rank == 0:
        _log.log(
            level,
            "every rank loads the whole model into host memory; save the model with transformers' save_pretrained, so "
            "that each rank reads only what it keeps",
            extra={"model": str(folder), "reason": first},
        )
    return first is None


def shard_obstacle(folder: Path, *, trust_remote_code: bool = False) -> str | None:
    """Returns why a rank cannot read the model's parameters from the model's files; None if the rank can.

    A rank can read them if each parameter is a tensor of the same name and shape. Raises `InvalidArgument` for a
    folder without a configuration; `OSError`, `KeyError`, `ValueError` or `SafetensorError` for unreadable files.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    config = read_config(folder, trust_remote_code=trust_remote_code)
    if getattr(config, "transformers_weights", None) is not None or not (paths := find_weight_files(folder)):
        return "the model has neither model.safetensors nor model.safetensors.index.json with its files"
    files = WeightFiles(paths)
    with torch.device("meta"):
        lm = make_empty(config, torch.float32, trust_remote_code=trust_remote_code)
    if get_model_conversion_mapping(lm, add_legacy=False):
        return f"transformers converts the tensors of a {type(lm).__name__} during loading"
    if lm._keep_in_fp32_modules_strict:
        return f"transformers keeps parameters of a {type(lm).__name__} in float32"
    for name, parameter in lm.named_parameters():
        if name not in files:
            return f"the model's files have no tensor {name}"
        kind, shape = files.form(name)
        if kind not in _FLOATS or shape != whole_shape(parameter):
            return f"in the files {name} is {kind} of shape {list(shape)}, not a float of shape {list(parameter.shape)}"
    for tied, source in lm.all_tied_weights_keys.items():
        if tied in files and not torch.equal(files.tensor(tied), files.tensor(source)):
            return (
                f"the model's configuration ties {tied} to {source}, but the model's files have different values for "
                f"{tied}"
            )
    return None


def _load_onto_device(folder: Path, dtype: torch.dtype, process_group: ProcessGroup, *, trust_remote_code: bool) -> Any:
    """Loads the whole model, one tensor at a time. On a GPU no rank holds the model in host memory."""
    with process_group.raising_on_all(), _reading(folder):
        config = read_config(folder, trust_remote_code=trust_remote_code)
        # Tensors that are never written take no memory.
        lm = make_empty(config, dtype, trust_remote_code=trust_remote_code)
        files = WeightFiles(find_weight_files(folder))
        for name, parameter in lm.named_parameters():
            # The device casts: less goes to it, and the host does not hold the cast.
            mapped = files.tensor(name).to(process_group.device)
            parameter.data = torch.empty_like(parameter, device=process_group.device).copy_(mapped)
        _copy_buffers(lm, files, process_group.device)
    return lm


def _load_sharded(
    folder: Path, dtype: torch.dtype, sharding: dict[str, Any], process_group: ProcessGroup, *, trust_remote_code: bool
) -> Any:
    start_deepspeed(process_group.device)
    sharder = _Sharder(
        config_dict_or_path={"train_micro_batch_size_per_gpu": 1, "zero_optimization": sharding},
        # Parameters get their type from transformers. DeepSpeed would give it to all tensors, also to frequencies.
        tensor_overrides=[deepspeed.runtime.zero.partition_parameters.DeepSpeedTensorOverride.device],
    )
    with sharder:
        config = read_config(folder, trust_remote_code=trust_remote_code)
        lm = make_empty(config, dtype, trust_remote_code=trust_remote_code)
    # Sharded parameters refer to themselves, even after tying has replaced them.
    gc.collect()
    with process_group.raising_on_all(), _reading(folder):
        files = WeightFiles(find_weight_files(folder))
        for name, parameter in lm.named_parameters():
            _copy_shard(parameter, files, name)
        _copy_buffers(lm, files, process_group.device)
    return lm


class _Sharder(deepspeed.zero.Init):
    """Shards every parameter immediately after its module is made.

    DeepSpeed would first broadcast each whole parameter, although it has no values yet. The broadcast would cause as
    much traffic as the size of the model, and would need memory for the whole of the model's largest module.
    """

    def _zero_init_param(self, param: nn.Parameter) -> None:
        self._convert_to_deepspeed_param(param)
        param.partition()


def _copy_shard(parameter: nn.Parameter, files: WeightFiles, name: str) -> None:
    """Copies this rank's shard of a parameter: rank n of N gets the n-th of N equal parts. The last part is padded."""
    shard = parameter.ds_tensor.data
    start = parameter.ds_zero_partition_rank * shard.numel()
    mine = files.tensor(name).reshape(-1)[start : start + shard.numel()]
    shard[: len(mine)].copy_(mine)
    shard[len(mine) :].zero_()
    # This second copy (hpZ) has the values that the model was made with. The first forward pass makes a new one.
    parameter.ds_secondary_tensor = None


def _copy_buffers(lm: nn.Module, files: WeightFiles, device: torch.device) -> None:
    """Copies the buffers that belong to the model's weights, and puts all buffers on the device."""
    saved = lm.state_dict().keys()
    for name, buffer in lm.named_buffers():
        if name in saved and name in files:
            buffer.copy_(files.tensor(name))
        buffer.data = buffer.data.to(device)


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, MemoryError, SafetensorError) as error:
        raise_machine_error(error)
        raise InvalidArgument(f"model.path: {folder} cannot be read: {error}") from error
