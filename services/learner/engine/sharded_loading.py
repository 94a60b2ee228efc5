"""Loading a model from its files, which are mapped into memory: each rank reads what it keeps.

Up to ZeRO stage 2 a rank copies each tensor to its device. At stage 3 the model is sharded while it is made, and a rank
copies its shards: no rank ever holds the whole model. Beside what it keeps, a rank holds at most one part of one group
of `converted_tensors`: for example, one expert.
"""

import ctypes
import gc
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from services.learner.engine.converted_tensors import CONVERSION_ERRORS, ConvertedTensors
from services.learner.engine.deepspeed_settings import deepspeed, start_deepspeed
from services.learner.model.language_model import load_whole, make_empty, read_config
from services.learner.model.machine_errors import raise_machine_error
from services.learner.model.weights import is_kept_in_float32, list_weights
from services.learner.ranks.process_group import ProcessGroup
from shoal.config.tables.lora import Quantization
from shoal.errors import InvalidArgument
from shoal.models.weight_files import WeightFiles, find_weight_files

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
    if the model is quantized, or has a `shard_obstacle`; at stage 3 the obstacle is logged as a warning. Call this
    function on all ranks. Raises, on every rank alike, `InvalidArgument` for a folder that cannot be loaded, and
    `ResourceExhausted` if a rank has too little memory.
    """
    shards = sharding["stage"] == 3
    if shards:
        _map_large_tensors()
    if quantization == "none" and _can_read(
        folder,
        process_group,
        trust_remote_code=trust_remote_code,
        level=logging.WARNING if shards else logging.INFO,
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

    A rank can read each parameter that transformers makes of floats of the files by moving them. Raises
    `InvalidArgument` for a folder without a configuration; `OSError`, `KeyError`, `ValueError` or `SafetensorError` for
    unreadable files.
    """
    config = read_config(folder, trust_remote_code=trust_remote_code)
    if getattr(config, "transformers_weights", None) is not None or not (paths := find_weight_files(folder)):
        return "the model has neither model.safetensors nor model.safetensors.index.json with its files"
    if getattr(config, "quantization_config", None) is not None:
        return "the model's files are quantized"
    files = WeightFiles(paths)
    lm = _make_meta(config, trust_remote_code=trust_remote_code)
    try:
        tensors = ConvertedTensors(lm, files)
    except CONVERSION_ERRORS as error:
        return f"transformers cannot convert the tensors of a {type(lm).__name__}: {error}"
    return _form_obstacle(lm, tensors, files)


def _make_meta(config: Any, *, trust_remote_code: bool) -> Any:
    with torch.device("meta"):
        return make_empty(config, torch.float32, trust_remote_code=trust_remote_code)


def _form_obstacle(lm: Any, tensors: ConvertedTensors, files: WeightFiles) -> str | None:
    saved = lm.state_dict().keys()
    buffers = [(name, buffer) for name, buffer in lm.named_buffers() if name in saved]
    for name, value in (*lm.named_parameters(), *buffers):
        if name not in tensors:
            return f"the model's files have no tensor {name}"
        group = tensors.group_of(name)
        kinds = {files.form(source)[0] for source in group.sources}
        if not kinds.issubset(_FLOATS) or group.shapes[name] != tuple(value.shape):
            return (
                f"in the files {name} is {', '.join(sorted(kinds))} of shape {list(group.shapes[name])}, not a float "
                f"of shape {list(value.shape)}"
            )
    for tied, source in lm.all_tied_weights_keys.items():
        if tied in tensors and not tensors.equal(tied, source):
            return (
                f"the model's configuration ties {tied} to {source}, but the model's files have different values for "
                f"{tied}"
            )
    return None


def _load_onto_device(folder: Path, dtype: torch.dtype, process_group: ProcessGroup, *, trust_remote_code: bool) -> Any:
    """Loads the whole model, one group of tensors at a time. On a GPU no rank holds the model in host memory."""
    with process_group.raising_on_all(), _reading(folder):
        config = read_config(folder, trust_remote_code=trust_remote_code)
        # Tensors that are never written take no memory.
        lm = make_empty(config, dtype, trust_remote_code=trust_remote_code)
        weights = list_weights(lm)
        for weight in weights:
            own_dtype = weight.type_beside(dtype)
            weight.parameter.data = torch.empty(weight.shape, dtype=own_dtype, device=process_group.device)
        places = {weight.name: _Place(weight.parameter.data.view(-1)) for weight in weights}
        _read_values(folder, lm, places, process_group.device, trust_remote_code=trust_remote_code)
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
        weights = list_weights(lm)
        places = {weight.name: _place_of_shard(weight.parameter, weight.type_beside(dtype)) for weight in weights}
        _read_values(folder, lm, places, process_group.device, trust_remote_code=trust_remote_code)
    return lm


class _Sharder(deepspeed.zero.Init):
    """Shards every parameter immediately after its module is made.

    DeepSpeed would first broadcast each whole parameter, although it has no values yet. The broadcast would cause as
    much traffic as the size of the model, and would need memory for the whole of the model's largest module.
    """

    def _zero_init_param(self, param: nn.Parameter) -> None:
        self._convert_to_deepspeed_param(param)
        param.partition()


@dataclass(frozen=True)
class _Place:
    """Where a rank keeps values of a tensor: flat, from the value with the index `start` on."""

    values: Tensor
    start: int = 0

    def overlaps(self, start: int, num_values: int) -> bool:
        """Returns whether the rank keeps some of the values from the index `start` on."""
        return start < self.start + len(self.values) and self.start < start + num_values

    def take(self, part: Tensor, start: int) -> None:
        """Copies what the rank keeps of the values from the index `start` on."""
        first, last = max(self.start, start), min(self.start + len(self.values), start + part.numel())
        # The device casts: less goes to it, and the host does not hold the cast.
        mine = part.reshape(-1)[first - start : last - start].to(self.values.device)
        self.values[first - self.start : last - self.start].copy_(mine)


def _place_of_shard(parameter: nn.Parameter, dtype: torch.dtype) -> _Place:
    """Returns the place of this rank's shard: rank n of N gets the n-th of N equal parts. The last part is padded."""
    for tensor in (parameter, parameter.ds_tensor):
        tensor.data = tensor.data.to(dtype)
    shard = parameter.ds_tensor.data
    start = parameter.ds_zero_partition_rank * shard.numel()
    shard[max(0, math.prod(parameter.ds_shape) - start) :].zero_()
    # This second copy (hpZ) has the values that the model was made with. The first forward pass makes a new one.
    parameter.ds_secondary_tensor = None
    return _Place(shard, start)


def _read_values(
    folder: Path, lm: Any, places: dict[str, _Place], device: torch.device, *, trust_remote_code: bool
) -> None:
    """Copies the values of parameters and saved buffers from the files, and puts all buffers on the device.

    Only the parts of which this rank keeps values are read, and a part is freed before the next is read.
    """
    saved = lm.state_dict().keys()
    for name, buffer in lm.named_buffers():
        dtype = torch.float32 if name in saved and is_kept_in_float32(lm, name) else buffer.dtype
        buffer.data = buffer.data.to(device, dtype)
        if name in saved:
            places = places | {name: _Place(buffer.data.view(-1))}
    meta = _make_meta(lm.config, trust_remote_code=trust_remote_code)
    for group in ConvertedTensors(meta, WeightFiles(find_weight_files(folder))):
        sizes = {name: math.prod(shape) // group.num_parts for name, shape in group.shapes.items() if name in places}
        for index in range(group.num_parts):
            if any(places[name].overlaps(index * size, size) for name, size in sizes.items()):
                part = group.part(index)
                for name, size in sizes.items():
                    if places[name].overlaps(index * size, size):
                        places[name].take(part[name], index * size)


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, MemoryError, SafetensorError) as error:
        raise_machine_error(error)
        raise InvalidArgument(f"model.path: {folder} cannot be read: {error}") from error
