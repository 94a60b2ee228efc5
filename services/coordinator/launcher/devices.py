"""Finds this machine's GPUs with the driver's tool, without importing torch, and shares them among processes."""

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument

_DRIVER_TIMEOUT_S = 30.0


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES.

    Raises `FailedPrecondition` when the driver's tool hangs or cannot be run.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        query = subprocess.run(
            [tool, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        raise FailedPrecondition(
            f"the GPUs of this machine are unknown: {tool} does not answer ({error}); fix the driver, or set "
            "CUDA_VISIBLE_DEVICES (empty for none)",
            reason=ErrorReason.NO_ANSWER_FROM_DRIVER,
        ) from None
    return query.stdout.split() if query.returncode == 0 else []


def usable_gpus() -> list[str]:
    """Returns the visible GPUs that the installed build of torch can use. Raises the errors of `visible_gpus`."""
    try:
        build = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [] if build.endswith("+cpu") else visible_gpus()


def share_out(config: RunConfig, gpus: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Returns the GPUs of each process, by the name of the process ("learner", "generator-0").

    If there are enough GPUs, learner and generators get separate GPUs. Otherwise all processes share the first GPUs,
    which needs `weights.backend` = "gloo" (NCCL refuses this) and `generator.gpu_kv_cache_gib`. With
    `launch.single_gpu`, learner and generator share the first GPU. Raises `InvalidArgument` if `launch.single_gpu`
    finds no GPU, if a process needs more GPUs than there are, and if the settings do not permit sharing.
    """
    if config.launch.single_gpu:
        if not gpus:
            raise InvalidArgument(
                "launch.single_gpu: this machine has no GPU to share; set launch.single_gpu to false to run on the CPU"
            )
        return {"learner": (gpus[0],), "generator-0": (gpus[0],)}
    if not gpus:
        return {}
    num_learner = config.launch.num_learner_ranks
    num_generator = config.generator.tensor_parallel_size * config.generator.pipeline_parallel_size
    generators = [f"generator-{number}" for number in range(config.launch.num_generators)]
    needed = num_learner + num_generator * len(generators)
    if len(gpus) >= needed:
        shares = {"learner": tuple(gpus[:num_learner])}
        for number, name in enumerate(generators):
            start = num_learner + number * num_generator
            shares[name] = tuple(gpus[start : start + num_generator])
        return shares
    for field, wanted in (
        ("launch.num_learner_ranks", num_learner),
        ("generator.tensor_parallel_size x generator.pipeline_parallel_size", num_generator),
    ):
        if wanted > len(gpus):
            raise InvalidArgument(
                f"{field}: {wanted} processes need a GPU each, but this machine has {len(gpus)} GPUs; lower the "
                f"value to at most {len(gpus)}"
            )
    if config.weights.backend != "gloo" or config.generator.gpu_kv_cache_gib is None:
        raise InvalidArgument(
            f"weights.backend: this machine has {len(gpus)} GPUs and the run needs {needed} (launch.num_learner_ranks "
            f"{num_learner} + launch.num_generators {len(generators)} x {num_generator}). NCCL refuses processes that "
            "share a GPU, and vLLM cannot measure its memory there: set launch.single_gpu=true; or set "
            "weights.backend=gloo, generator.gpu_kv_cache_gib, and a low enough generator.gpu_memory_utilization"
        )
    return {
        "learner": tuple(gpus[:num_learner]),
        **{name: tuple(gpus[:num_generator]) for name in generators},
    }
