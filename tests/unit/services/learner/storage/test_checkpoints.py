import contextlib
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner.storage.checkpoints import FileDigest, load_checkpoint
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition

ONE_RANK = SimpleNamespace(rank=0, size=1, raising_on_all=contextlib.nullcontext)


def learner(zero_stage: int) -> Any:
    config = SimpleNamespace(kl=SimpleNamespace(reference_update_steps=None))
    engine = SimpleNamespace(zero_stage=zero_stage)
    return SimpleNamespace(process_group=ONE_RANK, config=config, engine=engine, reference=None)


def test_another_zero_stage_is_refused_by_name_before_the_shards_are_read(tmp_path: Path) -> None:
    summary = json.dumps({"num_ranks": 2, "zero_stage": 2, "has_reference": False})
    folder = tmp_path / "c" / "learner"
    folder.mkdir(parents=True)
    (folder / "learner.json").write_text(summary)
    files = [
        FileDigest("state/shard.pt", 2**40, "of a file that would take an hour to read"),
        FileDigest("learner.json", len(summary), hashlib.sha256(summary.encode()).hexdigest()),
    ]
    with pytest.raises(FailedPrecondition, match=r"zero_stage = 2.* = 3") as caught:
        load_checkpoint(learner(zero_stage=3), tmp_path, "c", files=files, attempt=1)
    assert caught.value.reason == ErrorReason.OTHER_SHARDING
    assert caught.value.metadata == {"zero_stage": "2"}
