"""The disk space of a run."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.coordinator.launcher import disk
from services.coordinator.launcher.disk import check_disk, disk_space
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted
from tests.support.configs import run_config

GIB = 1 << 30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with 2^30 weights of two bytes, which take no space."""
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "dtype": "bfloat16"}')
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2 * GIB)
    return tmp_path


@pytest.mark.parametrize(
    ("sections", "bytes_per_weight"),
    # Measured with 5.4 million weights: 12.0 at stages 0 and 3, 16.0 at stages 1 and 2.
    [
        ({"learner": {"zero_stage": 0}}, 12),
        ({"learner": {"zero_stage": 1}}, 16),
        ({"learner": {"zero_stage": 2}}, 16),
        ({"learner": {"zero_stage": 3}}, 12),
        ({"learner": {"zero_stage": 0}, "kl": {"coef": 0.1}}, 12),
        ({"learner": {"zero_stage": 0}, "kl": {"coef": 0.1, "reference_update_steps": 4}}, 16),
    ],
)
def test_a_checkpoint_holds_master_weights_moments_and_a_moving_reference(
    model: Path, sections: dict[str, object], bytes_per_weight: int
) -> None:
    assert disk_space(model, model, run_config(**sections)).checkpoint_bytes == bytes_per_weight * GIB


@pytest.mark.parametrize(("free", "is_short", "is_refused"), [(24, False, False), (23, True, False), (11, True, True)])
def test_a_disk_is_short_with_less_than_two_checkpoints_and_refused_with_less_than_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_short: bool, is_refused: bool
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * GIB))
    space = disk_space(model / "not" / "there", model, run_config(learner={"zero_stage": 0}))
    assert (space.checkpoint_bytes, space.is_short) == (12 * GIB, is_short), space
    with pytest.raises(ResourceExhausted) if is_refused else nullcontext() as refusal:
        check_disk(space)
    assert refusal is None or refusal.value.reason == ErrorReason.DISK_FULL


def test_a_checkpoint_with_adapters_holds_them_alone(tmp_path: Path) -> None:
    import json

    sizes = {
        "vocab_size": 260, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    adapters = 2 * 4 * (4 * (64 + 64) + 3 * (64 + 128))
    learner = {"zero_stage": 0, "lora": {"rank": 4}}
    space = disk_space(tmp_path, tmp_path, run_config(str(tmp_path), learner=learner))
    assert space.checkpoint_bytes == 12 * adapters, space
