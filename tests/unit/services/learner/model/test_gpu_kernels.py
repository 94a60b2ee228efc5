"""Where kernels in Triton run, and what is said where they cannot."""

import logging
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.learner.model import gpu_kernels
from services.learner.model.gpu_kernels import can_run_kernels


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine that has Triton, gcc and Python's header files."""
    gpu_kernels._can_compile.cache_clear()
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(gpu_kernels, "find_spec", lambda name: name == "triton")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    yield tmp_path
    gpu_kernels._can_compile.cache_clear()


def test_kernels_run_on_a_gpu_and_not_on_a_cpu() -> None:
    assert can_run_kernels(torch.device("cuda", 1))
    assert not can_run_kernels(torch.device("cpu"))


@pytest.mark.parametrize("what", ["triton", "gcc", "header"])
def test_what_a_machine_with_a_gpu_lacks_is_named_once(
    monkeypatch: pytest.MonkeyPatch, machine: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    if what == "triton":
        monkeypatch.setattr(gpu_kernels, "find_spec", lambda name: None)
    elif what == "gcc":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    else:
        (machine / "Python.h").unlink()
    with caplog.at_level(logging.WARNING):
        assert not can_run_kernels(torch.device("cuda"))
        assert not can_run_kernels(torch.device("cuda"))
    assert len(caplog.records) == 1
    assert what in caplog.records[0].getMessage()


def test_a_compiler_of_another_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CC", "icx")
    assert can_run_kernels(torch.device("cuda"))
