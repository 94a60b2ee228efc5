"""One of several ranks that load models at ZeRO stages 3 and 1; started by test_sharded_loading.py.

Usage: main() with the argument FOLDER, by tests/support/ranks.py. Writes FOLDER/<name>-<rank>.json for every folder of
a model FOLDER/models/<name>.
"""

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.learner.engine import sharded_loading
from services.learner.engine.converted_tensors import TensorGroup
from services.learner.engine.deepspeed_settings import policy_sharding, start_deepspeed
from services.learner.engine.sharded_loading import load_model
from services.learner.model.language_model import load_whole
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make in a context, mapped files excepted."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # So safetensors makes a tensor of a mapped file. Its views are not counted either: they have a known storage.
        is_mapped = func is torch.ops.aten.set_.source_Storage
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                num_bytes = 0 if is_mapped else storage.nbytes()
                self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), num_bytes))
        self.peak = max(self.peak, self.alive)
        return result

    @property
    def alive(self) -> int:
        """The bytes of the tensors that are in memory now."""
        self._alive = {key: alive for key, alive in self._alive.items() if not alive[0].expired()}
        return sum(num_bytes for _, num_bytes in self._alive.values())


@contextmanager
def peak_of_reading(live: LiveBytes) -> Iterator[list[int]]:
    """Yields a list which gets the bytes that the conversions of the files' tensors hold at most."""
    read, peaks = TensorGroup.part, [0]

    def recorded_part(group: TensorGroup, index: int) -> dict[str, torch.Tensor]:
        before, before_peak = live.alive, live.peak
        live.peak = 0
        part = read(group, index)
        peaks[0] = max(peaks[0], live.peak - before)
        live.peak = max(live.peak, before_peak)
        return part

    with patch.object(TensorGroup, "part", recorded_part):
        yield peaks


def load(folder: Path, dtype: torch.dtype, process_group: ProcessGroup) -> dict[str, Any]:
    """Loads a model as the learner does, and compares it with the whole model that transformers loads."""
    sharding = policy_sharding(LearnerConfig(zero_stage=3))
    gc.collect()
    gc.disable()
    with LiveBytes() as live, peak_of_reading(live) as reading:
        try:
            lm = load_model(folder, dtype, sharding=sharding, process_group=process_group)
        except InvalidArgument as error:
            return {"error": error.message}
        finally:
            gc.enable()
    whole = load_whole(folder, dtype)
    sharded = {name: parameter for name, parameter in lm.named_parameters() if hasattr(parameter, "ds_tensor")}
    with deepspeed.zero.GatheredParameters(list(sharded.values())):
        loaded = {name: tensor.clone() for name, tensor in (*lm.named_parameters(), *lm.named_buffers())}
    expected = dict((*whole.named_parameters(), *whole.named_buffers()))
    sizes = [parameter.nbytes for parameter in whole.parameters()]
    return {
        "is_sharded": len(sharded) == len(sizes),
        "differing": [n for n, t in expected.items() if t.dtype != loaded[n].dtype or not torch.equal(t, loaded[n])],
        "peak": live.peak,
        "reading": reading[0],
        "whole": sum(sizes),
        "largest": max(sizes),
        "at_stage_1": load_onto_device(folder, dtype, process_group, expected),
    }


def load_onto_device(
    folder: Path, dtype: torch.dtype, process_group: ProcessGroup, expected: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Loads a model as the learner does below stage 3, and compares it with the whole model."""
    by_transformers: list[Path] = []

    def recorded_load(folder: Path, *args: Any, **options: Any) -> Any:
        by_transformers.append(folder)
        return load_whole(folder, *args, **options)

    sharded_loading.load_whole = recorded_load
    lm = load_model(folder, dtype, sharding=policy_sharding(LearnerConfig(zero_stage=1)), process_group=process_group)
    sharded_loading.load_whole = load_whole
    loaded = dict((*lm.named_parameters(), *lm.named_buffers()))
    differing = [n for n, t in expected.items() if t.dtype != loaded[n].dtype or not torch.equal(t, loaded[n])]
    # transformers' classes mark the balance of a router as not trained.
    frozen = [name for name, parameter in lm.named_parameters() if not parameter.requires_grad]
    differing += [name for name in frozen if not name.endswith("e_score_correction_bias")]
    return {"by_transformers": bool(by_transformers), "differing": differing + sorted(loaded.keys() ^ expected.keys())}


def main() -> None:
    limit_threads(3)
    folder = Path(sys.argv[1])
    process_group = ProcessGroup.connect()
    start_deepspeed(process_group.device)
    for model in sorted((folder / "models").iterdir()):
        dtype = torch.bfloat16 if model.name.endswith("-bfloat16") else torch.float32
        result = load(model, dtype, process_group)
        (folder / f"{model.name}-{process_group.rank}.json").write_text(json.dumps(result))
    process_group.leave()
