"""Threads and kernels of a learner rank, on which the last bits of its results depend."""

import os

import torch

from shoal.config import RunConfig
from shoal.errors import InvalidArgument

_UNCHANGED_THREADS = torch.get_num_threads()
"""The number of threads that the environment sets."""

# Otherwise the last bits of MKL's products depend on the addresses of their matrices, which a restore may change. MKL
# reads this variable once, at the first product of the process.
os.environ.setdefault("MKL_CBWR", "AUTO")


def settle_kernels(config: RunConfig, *, device: torch.device) -> None:
    """Sets `run.num_threads` and `run.deterministic` for this process. Call it in the thread that computes.

    Raises `InvalidArgument` for a deterministic run on a GPU.
    """
    is_deterministic = config.run.deterministic
    if is_deterministic and device.type != "cpu":
        raise InvalidArgument(
            "run.deterministic: this learner computes on a GPU, whose sums have no fixed order: set it to false, or "
            "start the learner with CUDA_VISIBLE_DEVICES set to an empty value"
        )
    torch.set_num_threads(config.run.num_threads or _UNCHANGED_THREADS)
    torch.use_deterministic_algorithms(is_deterministic)
