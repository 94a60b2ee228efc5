"""Errors of files that a learner writes."""

import errno
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from services.learner.engine.deepspeed_engine import _Storage
from services.learner.storage.atomic_folder import storage_error
from shoal.errors import FailedPrecondition, ResourceExhausted


def _error_of_save(monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception) -> OSError:
    def fail(*values: object) -> None:
        raise error

    monkeypatch.setattr(torch, "save", fail)
    storage = _Storage()
    storage.save({}, str(folder / "state"))
    assert storage.error is not None
    return storage.error


def test_full_memory_during_a_checkpoint_is_no_fault_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
    kept = _error_of_save(monkeypatch, tmp_path, full)
    assert kept.errno == errno.ENOMEM, kept
    error = storage_error(kept, tmp_path)
    assert type(error) is ResourceExhausted and error.reason == "RESOURCE_EXHAUSTED", error
    assert "8 bytes" in error.message and "launch.num_learner_ranks" in error.message, error.message
    other = storage_error(_error_of_save(monkeypatch, tmp_path, RuntimeError("unexpected pos 64")), tmp_path)
    assert type(other) is FailedPrecondition and "unexpected pos 64" in other.message, other
