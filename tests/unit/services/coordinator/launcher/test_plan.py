"""Plans of the processes of a run."""

from pathlib import Path

import pytest

from services.coordinator.launcher.plan import plan_coordinator, plan_workers
from tests.support.configs import run_config


def test_the_plan_has_as_many_processes_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = run_config(launch={"num_generators": 2, "num_rewards": 2, "num_learner_ranks": 4})
    plans = {plan.name: plan for plan in plan_workers(config, coordinator="127.0.0.1:7", data_dir=tmp_path, gpus=[])}
    assert set(plans) == {"generator-0", "generator-1", "learner", "reward-0", "reward-1"}
    assert plans["learner"].command[1:3] == ("-m", "services.learner")
    assert plans["learner"].command[-2:] == ("--num-ranks", "4")
    assert [plans[name].environment["OMP_NUM_THREADS"] for name in ("learner", "generator-0", "reward-0")] == [
        "2", "4", "1",
    ]  # fmt: skip
    assert all(plan.may_restart for plan in plans.values())


def test_a_coordinator_restarts_at_its_address_and_only_once_its_run_is_accepted(tmp_path: Path) -> None:
    first = plan_coordinator("127.0.0.1:7", name="one", data_dir=tmp_path, port_file=tmp_path / "port")
    again = plan_coordinator("127.0.0.1:7", name="one", data_dir=tmp_path)
    assert (first.name, first.may_restart) == (again.name, not again.may_restart)
    for plan in (first, again):
        options = dict(zip(plan.command[3::2], plan.command[4::2], strict=True))
        assert (options["--listen"], options["--name"]) == ("127.0.0.1:7", "one")


def test_reward_services_started_here_allow_what_the_configuration_asks_for_and_no_more(tmp_path: Path) -> None:
    reward = {
        "custom": {"mine": {"file": "/home/me/run/verifier.py"}, "other": {"entry_point": "pkg.rewards:score"}},
        "judge": {"base_url": "https://api.example.com/v1", "model": "j", "api_key_env": "JUDGE_KEY"},
        "model": {"path": "org/model", "revision": "1a2b3c", "trust_remote_code": True},
    }
    environments = [
        {"name": "mcp", "settings": {"command": ["/opt/server", "a b"], "variables": ["HUB"]}},
        {"name": "wordle", "settings": {"words_file": "/home/me/words.txt"}},
        {"name": "sums", "source": "verifiers", "interpreter": "/opt/python", "settings": {"taskset": {"id": "sums"}}},
    ]
    config = run_config(reward=reward, environments=environments)
    plans = plan_workers(config, coordinator="127.0.0.1:7", data_dir=tmp_path, gpus=[])
    (command,) = [plan.command for plan in plans if plan.kind == "reward"]
    assert command[command.index("--allow-verifier-folder") :] == (
        *("--allow-verifier-folder", "/home/me/run", "--allow-verifier-package", "pkg"),
        *("--allow-program", "/opt/server 'a b'", "--allow-variable", "HUB", "--allow-verifier-folder", "/home/me"),
        *("--allow-interpreter", "/opt/python", "--allow-verifier-package", "verifiers"),
        *("--allow-api-key", "JUDGE_KEY=https://api.example.com/v1", "--allow-remote-code", "org/model@1a2b3c"),
    )


def test_the_number_of_threads_in_the_environment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    plan = plan_coordinator("127.0.0.1:7", name="one", data_dir=tmp_path, port_file=tmp_path / "port")
    assert plan.environment["OMP_NUM_THREADS"] == "3"


def test_the_number_of_threads_in_the_configuration_counts_for_those_that_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    plans = plan_workers(run_config(run={"num_threads": 2}), coordinator="127.0.0.1:7", data_dir=tmp_path, gpus=[])
    threads = {plan.name: plan.environment["OMP_NUM_THREADS"] for plan in plans}
    assert threads == {"generator-0": "2", "learner": "2", "reward-0": "3"}


def test_gpus_are_named_as_the_driver_counts_them_or_as_the_user_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environments(gpus: list[str]) -> dict[str, dict[str, str]]:
        plans = plan_workers(run_config(), coordinator="127.0.0.1:7", data_dir=tmp_path, gpus=gpus)
        return {
            plan.name: {name: value for name, value in plan.environment.items() if name.startswith("CUDA")}
            for plan in plans
        }

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    counted = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environments(["0", "1"]) == {
        "learner": {"CUDA_VISIBLE_DEVICES": "0", **counted},
        "generator-0": {"CUDA_VISIBLE_DEVICES": "1", **counted},
        "reward-0": {},
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5,GPU-7")
    named = environments(["GPU-5", "GPU-7"])
    assert named["generator-0"] == {"CUDA_VISIBLE_DEVICES": "GPU-7"}
