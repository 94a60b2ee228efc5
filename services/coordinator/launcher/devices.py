"""Which GPU each process gets on this machine. Asks the driver's own tool, since torch may not be imported here."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from shoal.config import RunConfig
from shoal.errors import FailedPrecondition, InvalidArgument

_ASK_TIMEOUT_S = 30.0


def visible_gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES of the GPUs that this process may use; empty without any.

    Raises `FailedPrecondition` when the driver's tool hangs or cannot be run.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        raise FailedPrecondition(
            f"which GPUs are here is not known: {tool} does not answer ({error}); mend the driver, or set "
            "CUDA_VISIBLE_DEVICES (empty for none)",
            reason="NO_ANSWER_FROM_DRIVER",
        ) from None
    return asked.stdout.split() if asked.returncode == 0 else []


def share_out(config: RunConfig, gpus: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The GPUs of each process, by its name ("learner", "generator-0").

    Learner and generators get GPUs of their own where there are enough. With fewer all share the first ones.

    With `launch.single_gpu` both have the first one.

    Raises `InvalidArgument` when one process alone wants more than there are, when they have to share and the weights
    are to travel by NCCL, which refuses two members on one GPU, and when there is no GPU to share.
    """
    if config.launch.single_gpu:
        if not gpus:
            raise InvalidArgument(
                "launch.single_gpu: this machine has no GPU to share; set it to false to run on the CPU"
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
                f"{field}: {wanted} is more than the {len(gpus)} GPUs of this machine, and each takes one of its own; "
                f"give {len(gpus)} at most"
            )
    if config.weights.backend != "gloo":
        raise InvalidArgument(
            f"weights.backend: this machine has {len(gpus)} GPUs and the run wants {needed} (launch.num_learner_ranks "
            f"{num_learner} + launch.num_generators {len(generators)} x {num_generator}), so that processes share a "
            "GPU, which NCCL refuses: --set launch.single_gpu=true or weights.backend=gloo, and "
            "generator.gpu_memory_utilization low enough that all fit"
        )
    return {
        "learner": tuple(gpus[:num_learner]),
        **{name: tuple(gpus[:num_generator]) for name in generators},
    }
