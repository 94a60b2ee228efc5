"""Shares of the GPUs of a machine."""

from pathlib import Path

import pytest

from services.coordinator.launcher import devices
from services.coordinator.launcher.devices import share_out, usable_gpus, visible_gpus
from shoal.errors import FailedPrecondition, InvalidArgument
from tests.support.configs import run_config


def test_processes_get_separate_gpus_where_there_are_enough() -> None:
    config = run_config(
        launch={"num_generators": 2, "num_learner_ranks": 2},
        generator={"tensor_parallel_size": 2},
    )
    shares = share_out(config, ["0", "1", "2", "3", "4", "5"])
    assert shares == {"learner": ("0", "1"), "generator-0": ("2", "3"), "generator-1": ("4", "5")}


def test_sharing_a_gpu_is_refused_for_nccl_and_allowed_for_gloo_with_a_cache_of_known_size() -> None:
    with pytest.raises(InvalidArgument, match=r"weights.backend: .* 1 .* 2"):
        share_out(run_config(), ["0"])
    gloo = {"backend": "gloo"}
    with pytest.raises(InvalidArgument, match=r"generator\.gpu_kv_cache_gib"):
        share_out(run_config(weights=gloo), ["0"])
    sized = run_config(weights=gloo, generator={"gpu_kv_cache_gib": 2})
    assert share_out(sized, ["0"]) == {"learner": ("0",), "generator-0": ("0",)}


def test_single_gpu_shares_the_first_gpu_and_needs_one() -> None:
    config = run_config(launch={"single_gpu": True}, generator={"gpu_memory_utilization": 0.4})
    assert share_out(config, ["3", "4"]) == {"learner": ("3",), "generator-0": ("3",)}
    with pytest.raises(InvalidArgument, match=r"launch\.single_gpu: "):
        share_out(config, [])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"launch": {"num_generators": 2}}, r"launch\.num_generators is 2"),
        ({"launch": {"num_learner_ranks": 2}}, r"launch\.num_learner_ranks is 2"),
        ({"generator": {"tensor_parallel_size": 2}}, r"generator\.tensor_parallel_size is 2"),
        ({"generator": {"pipeline_parallel_size": 2}}, r"generator\.pipeline_parallel_size is 2"),
        ({"weights": {"backend": "nccl"}}, "NCCL"),
        ({"generator": {"gpu_memory_utilization": 0.9}}, r"0\.4 \(it is 0\.9\)"),
        ({"generator": {"sleep_while_training": True}}, r"grpo\.max_staleness 0 \(it is 1\)"),
    ],
)
def test_settings_that_one_gpu_cannot_serve_are_refused(sections: dict[str, dict[str, object]], message: str) -> None:
    shared = {"launch": {"single_gpu": True}, "generator": {"gpu_memory_utilization": 0.4}}
    with pytest.raises(InvalidArgument, match=message):
        run_config(**{name: shared.get(name, {}) | sections.get(name, {}) for name in shared | sections})


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"launch": {"num_learner_ranks": 3}}, "launch.num_learner_ranks: 3"),
        ({"generator": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, "pipeline_parallel_size: 4"),
    ],
)
def test_a_process_that_needs_more_gpus_than_there_are_is_refused(sections: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} .* 2 GPUs"):
        share_out(run_config(weights={"backend": "gloo"}, **sections), ["0", "1"])


def test_without_gpus_there_are_no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_out(run_config(), []) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert visible_gpus() == ["2", "GPU-5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    assert visible_gpus() == []


def test_a_driver_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(devices, "_DRIVER_TIMEOUT_S", 0.2)
    with pytest.raises(FailedPrecondition, match=r"nvidia-smi .*CUDA_VISIBLE_DEVICES"):
        visible_gpus()


@pytest.mark.parametrize(
    ("build", "usable"), [("2.13.0", ["0", "1"]), ("2.13.0+cu130", ["0", "1"]), ("2.13.0+cpu", [])]
)
def test_gpus_that_the_installed_torch_cannot_use_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, build: str, usable: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("importlib.metadata.version", lambda name: build)
    assert usable_gpus() == usable
