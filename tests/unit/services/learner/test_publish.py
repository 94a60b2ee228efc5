"""Weight groups of the learner."""

from typing import Any

import pytest
import torch

from services.learner.publish import WeightPublisher
from shoal.config import parse_config
from shoal.errors import InvalidArgument


@pytest.mark.parametrize(
    ("sections", "device", "backend"),
    [
        ({}, "cpu", "gloo"),
        ({}, "cuda", "nccl"),
        ({"launch": {"single_gpu": True}, "generator": {"gpu_memory_utilization": 0.4}}, "cuda", "gloo"),
        ({"weights": {"backend": "gloo"}}, "cuda", "gloo"),
    ],
)
def test_the_backend_is_one_that_the_devices_support(sections: dict[str, Any], device: str, backend: str) -> None:
    config = parse_config({"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}} | sections)
    publisher = WeightPublisher(config, run_id="r", host="127.0.0.1", device=torch.device(device))
    try:
        assert publisher.create_group(1, 1).backend == backend
    finally:
        publisher.close()


def test_nccl_without_a_gpu_is_refused_with_the_cure() -> None:
    config = parse_config(
        {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}, "weights": {"backend": "nccl"}}
    )
    with pytest.raises(InvalidArgument, match=r"weights\.backend: nccl sends from a GPU.*set it to auto"):
        WeightPublisher(config, run_id="r", host="127.0.0.1", device=torch.device("cpu"))
