"""`shoal run ...` against a coordinator that follows a script, over real gRPC."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.v1 import coordinator_pb2 as pb

Shoal = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("scripted")


def test_status_shows_state_step_groups_and_metrics(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status")
    assert code == 0
    for part in ("sums", "FINISHED - done", "3 of 5", "24 TRAINED", "objective/scores  0.5"):
        assert part in text, text


def test_json_has_the_field_names_of_the_contract(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status", "sums", "--output", "json")
    run = json.loads(text)
    assert (code, run["run_id"], run["state"], run["policy_version"]) == (0, "sums", "RUN_STATE_FINISHED", 3)


def test_an_unknown_run_is_not_found(shoal: Shoal) -> None:
    assert shoal("run", "status", "tomorrow") == (4, "", "error: there is no run 'tomorrow'\n")


def test_each_control_command_calls_its_rpc(shoal: Shoal, scripted: Any) -> None:
    commands = (["pause"], ["resume"], ["stop"], ["stop", "--mode", "drain"])
    assert [shoal("run", *command)[0] for command in commands] == [0, 0, 0, 0]
    assert scripted.requests == ["pause", "resume", "stop STOP_MODE_NOW", "stop STOP_MODE_DRAIN"]


def test_a_run_that_has_ended_is_resumed_by_name_with_changes(shoal: Shoal, scripted: Any) -> None:
    assert shoal("run", "resume", "sums", "--set", "run.num_steps=9")[0] == 0
    assert shoal("run", "start", "--resume", "sums", "--set", "learner.learning_rate=1e-4")[0] == 0
    assert scripted.requests == [
        "resume sums with {'run': {'num_steps': 9.0}}",
        "resume sums with {'learner': {'learning_rate': 0.0001}}",
    ]


def test_an_active_run_is_not_resumed_with_changes(shoal: Shoal, scripted: Any) -> None:
    scripted.final_state = pb.RUN_STATE_PAUSED
    code, _, error = shoal("run", "resume", "sums", "--set", "run.num_steps=9")
    assert code == 5 and "shoal run stop" in error and not scripted.requests, (code, error)


def test_a_checkpoint_is_named(shoal: Shoal) -> None:
    assert shoal("run", "checkpoint")[:2] == (0, "checkpoint step-00000003 of step 3 is written\n")


def test_runs_are_one_line_each_on_a_pipe(shoal: Shoal) -> None:
    assert "sums  FINISHED  3/5" in shoal("run", "list")[1]


def test_rollouts_show_rewards_and_the_next_page(shoal: Shoal, scripted: Any) -> None:
    code, text, _ = shoal("run", "rollouts", "--limit", "1", "--page", "4")
    assert code == 0 and scripted.requests == ["rollouts 1 4"]
    for part in ("sums/0  TRAINED in step 2, staleness 1", "'1 + 1?'", "1.000  '2'", "FAILED  '3'", "more: --page 5"):
        assert part in text, text


def test_a_run_is_started_with_overrides_and_watched(shoal: Shoal, scripted: Any) -> None:
    code, text, _ = shoal(
        "run", "start", "configs/quickstart.toml", "--set", "grpo.group_size=4", "--name", "sums", "--watch"
    )
    assert code == 0, text
    assert scripted.requests == ["start sums 4", "watch from 0"]
    assert [line.partition(" s] ")[2] for line in text.splitlines()[:3]] == [
        "step 1/3  reward 0.10", "step 2/3  reward 0.20", "step 3/3  reward 0.30",
    ]  # fmt: skip


def test_a_broken_watch_continues_after_the_last_event(shoal: Shoal, scripted: Any) -> None:
    scripted.breaks_after = 2
    code, text, _ = shoal("run", "watch", "--output", "json")
    assert code == 0
    assert scripted.requests == ["watch from 0", "watch from 2"]
    assert [json.loads(line)["sequence"] for line in text.splitlines()] == [1, 2, 3]


def test_watching_an_unknown_run_fails_at_once(shoal: Shoal, scripted: Any) -> None:
    assert shoal("run", "watch", "tomorrow") == (4, "", "error: there is no run 'tomorrow'\n")
    assert scripted.requests == []


def test_a_broken_watch_continues_with_the_same_run(shoal: Shoal, scripted: Any) -> None:
    scripted.breaks_after = 1
    assert shoal("run", "watch")[0] == 0
    assert scripted.watched_runs == ["sums", "sums"]


def test_watching_a_run_that_fails_exits_with_1(shoal: Shoal, scripted: Any) -> None:
    scripted.final_state = pb.RUN_STATE_FAILED
    assert shoal("run", "watch")[0] == 1
