"""Threads and kernels of a learner rank."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch

from services.learner.engine.deepspeed_settings import settle_kernels
from shoal.config import RunConfig
from shoal.errors import InvalidArgument
from tests.support.configs import run_config

SAME_PRODUCTS = """
import torch
import services.learner.engine.deepspeed_settings

def at(offset, matrix):
    place = torch.empty(matrix.numel() + 16)[offset : offset + matrix.numel()].view(matrix.shape)
    return place.copy_(matrix)

for rows, inner, columns in ((1, 64, 192), (5, 64, 128), (7, 96, 33)):
    left, right = torch.randn(rows, inner), torch.randn(columns, inner)
    expected = torch.nn.functional.linear(left, right)
    for offset in (1, 3, 4):
        product = torch.nn.functional.linear(at(offset, left), at(offset, right))
        num_others = int((product != expected).sum())
        assert not num_others, f"{num_others} of {rows * columns} values differ {4 * offset} bytes further on"
"""


def config(**run: object) -> RunConfig:
    return run_config(
        "unused",
        data={"sources": [{"path": "unused.jsonl"}]},
        grpo={"max_staleness": 0},
        generator={"dtype": "float32"},
        learner={"compute_dtype": "float32"},
        run=run,
    )


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_a_run_gets_the_threads_and_the_kernels_that_it_asks_for_and_the_next_one_its_own() -> None:
    before = torch.get_num_threads()
    settle_kernels(config(deterministic=True, num_threads=before + 1), device=torch.device("cpu"))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (before + 1, True)
    settle_kernels(config(), device=torch.device("cpu"))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (before, False)


def test_a_deterministic_run_on_a_gpu_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"run\.deterministic: "):
        settle_kernels(config(deterministic=True, num_threads=1), device=torch.device("cuda"))


def test_the_bits_of_a_product_do_not_depend_on_where_its_matrices_are() -> None:
    subprocess.run([sys.executable, "-c", SAME_PRODUCTS], check=True)
