"""`shoal run ...` against a coordinator that follows a script, over real gRPC."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store.run_record import RunRecord
from shoal.config import load_config
from shoal.v1 import coordinator_pb2 as pb
from tests.support.parsed_commands import Shoal, parse_command

pytestmark = pytest.mark.usefixtures("scripted")


def test_each_control_command_calls_its_rpc(shoal: Shoal, scripted: Any) -> None:
    commands = (["pause"], ["resume"], ["stop"], ["stop", "--mode", "drain"])
    assert [shoal("run", *command)[0] for command in commands] == [0, 0, 0, 0]
    assert scripted.requests == ["pause", "resume", "stop STOP_MODE_NOW", "stop STOP_MODE_DRAIN"]


def test_a_checkpoint_is_named(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "checkpoint")
    assert code == 0 and "step-00000003" in text, text


def test_a_profile_prints_the_recorded_steps_and_a_file_in_each_line(shoal: Shoal, scripted: Any) -> None:
    code, text, _ = shoal("run", "profile", "--steps", "3")
    first, *paths = text.splitlines()
    assert code == 0 and "steps 4 to 6" in first, text
    assert paths == [f"/data/sums/profiles/step-00000004-rank-{rank}.json.gz" for rank in range(2)]
    code, text, _ = shoal("run", "profile", "-o", "json")
    assert code == 0 and json.loads(text) == {
        "paths": paths, "first_step": 4, "last_step": 5, "is_partial": False,
    }, text  # fmt: skip
    assert scripted.requests == ["profile 3", "profile 2"]


def test_a_run_is_started_with_overrides_and_watched(shoal: Shoal, scripted: Any) -> None:
    code, text, _ = shoal(
        "run", "start", "configs/quickstart.toml", "--set", "grpo.group_size=4", "--name", "sums", "--watch"
    )
    assert code == 0, text
    assert scripted.requests == ["start sums 4", "watch from 0"]
    assert [line.partition(" s] ")[2] for line in text.splitlines()[2:5]] == [
        "step 1/3  reward 0.10", "step 2/3  reward 0.20", "step 3/3  reward 0.30",
    ]  # fmt: skip
    assert parse_command(f"shoal report {text.rpartition('shoal report ')[2].strip()}")["run"] == "sums", text


def test_a_run_that_is_started_and_watched_leaves_a_report_where_its_folder_is_here(
    shoal: Shoal, scripted: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    record = RunRecord("sums", folder)
    record.save_config(load_config(Path("configs/quickstart.toml")))
    record.save()
    scripted.path = str(folder)
    code, text, _ = shoal("run", "start", "configs/quickstart.toml", "--name", "sums", "--watch")
    assert code == 0 and f"{folder}/report.html" in text.splitlines()[-1], text
    assert (folder / "report.html").read_text().startswith("<!"), text


def test_a_run_that_has_ended_is_resumed_by_name_with_changes(shoal: Shoal, scripted: Any) -> None:
    assert shoal("run", "resume", "sums", "--set", "run.num_steps=9")[0] == 0
    assert shoal("run", "start", "--resume", "sums", "--set", "learner.learning_rate=1e-4")[0] == 0
    assert scripted.requests == [
        ("resume", "sums", {"run": {"num_steps": 9.0}}),
        ("resume", "sums", {"learner": {"learning_rate": 0.0001}}),
    ]


def test_an_active_run_is_not_resumed_with_changes(shoal: Shoal, scripted: Any) -> None:
    scripted.final_state = pb.RUN_STATE_PAUSED
    code, _, error = shoal("run", "resume", "sums", "--set", "run.num_steps=9")
    assert code == 5 and not scripted.requests, (code, error)
    told = parse_command(error.strip().partition("an active run: ")[2])
    assert (told["run"], told["overrides"]) == ("sums", ["run.num_steps=9"]) and told["coordinator"], told


def test_an_update_prints_what_has_changed_and_when_and_the_run_as_it_will_be(shoal: Shoal, scripted: Any) -> None:
    changes = ("--set", "run.num_steps=9", "--set", "checkpoint.keep_last=3")
    code, text, _ = shoal("run", "update", "sums", *changes)
    assert code == 0 and "3 of 9" in text, text
    at_once, later = text.splitlines()[:2]
    assert at_once.startswith("checkpoint.keep_last: 2 -> 3, at once"), text
    assert later.startswith("run.num_steps: 5 -> 9, ") and "next step" in later, text
    scripted.changes = False
    assert "->" not in shoal("run", "update", "sums", *changes)[1]
