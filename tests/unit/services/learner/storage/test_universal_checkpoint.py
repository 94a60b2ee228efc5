import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner.storage.universal_checkpoint import universal_form
from shoal.error_reasons import ErrorReason
from shoal.errors import Internal, ResourceExhausted

ONE_RANK: Any = SimpleNamespace(rank=0, raising_on_all=contextlib.nullcontext, raise_on_all=lambda error: None)


def checkpoint_with(folder: Path, shard: bytes) -> Path:
    (folder / "learner" / "state").mkdir(parents=True)
    (folder / "learner" / "state" / "shard.pt").write_bytes(shard)
    (folder / "universal.partial" / "state").mkdir(parents=True)  # Left by a process that was killed.
    return folder


def convert(checkpoint: Path) -> None:
    with universal_form(checkpoint, checkpoint / "learner", ONE_RANK):
        raise AssertionError("nothing can be converted here")


def test_a_disk_without_room_for_a_conversion_is_an_error_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_with(tmp_path / "c", bytes(1000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2999))
    with pytest.raises(ResourceExhausted, match=r"2\.9 KiB .* 2\.9 KiB are free") as caught:
        convert(checkpoint)
    assert caught.value.reason == ErrorReason.DISK_FULL
    assert [path.name for path in checkpoint.iterdir()] == ["learner"], "what an earlier process left is deleted"


def test_a_state_that_cannot_be_converted_is_an_error_that_names_it(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path / "c", b"no shard")
    with pytest.raises(Internal, match=r"learner/state ") as caught:
        convert(checkpoint)
    assert caught.value.reason == ErrorReason.NOT_CONVERTED
    assert [path.name for path in checkpoint.iterdir()] == ["learner"], "nothing of the conversion stays"
