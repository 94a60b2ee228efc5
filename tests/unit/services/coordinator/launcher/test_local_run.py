"""What `shoal train` checks and decides before a process starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.launcher.local_run import prepare_local_run
from services.coordinator.store.run_lock import RunLock
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config
from shoal.config.load import config_struct
from shoal.error_reasons import ErrorReason
from shoal.errors import AlreadyExists, DataLoss, FailedPrecondition, InvalidArgument
from shoal.models import adapter_check
from shoal.v1 import coordinator_pb2 as pb
from tests.support.configs import run_config
from tests.support.tiny_model import make_tiny_model
from tests.support.wordings import has_all


def test_a_finished_run_is_resumed_with_a_change_alone(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = run_config(str(model))
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    RunRecord("mine", folder, RunState.FINISHED, "finished after step 9", policy_version=9).save()
    request = pb.StartRunRequest(run_id="mine", resume=True)
    with pytest.raises(FailedPrecondition, match=r"--set run.num_steps=N .* 9"):
        prepare_local_run(request, tmp_path / "runs", lambda _: None)
    request.config.update({"run": {"num_steps": 300}})
    assert prepare_local_run(request, tmp_path / "runs", lambda _: None).config.run.num_steps == 300


@pytest.mark.parametrize("changes", [{}, {"run": {"num_steps": 300}}])
@pytest.mark.parametrize("name", ["run.json", "config.json"])
@pytest.mark.parametrize("content", [None, "", "{}", '{"run_id": "mi'])
def test_a_resume_names_the_lost_or_damaged_file_and_what_to_do(
    tmp_path: Path, name: str, content: str | None, changes: dict[str, Any]
) -> None:
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "ledger.sqlite").touch()
    record = RunRecord("mine", folder, RunState.STOPPED)
    record.save()
    record.save_config(run_config())
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    request = pb.StartRunRequest(run_id="mine", resume=True)
    request.config.update(changes)
    with pytest.raises(DataLoss) as caught:
        prepare_local_run(request, tmp_path / "runs", lambda _: None)
    message = caught.value.message
    named = (str(folder / name), "restore the file", f"rename {folder}", "--resume mine --set checkpoint.mirror=URL")
    assert has_all(message, *named), message


def test_a_run_that_has_lost_its_record_keeps_its_name(tmp_path: Path) -> None:
    checkpoint = tmp_path / "runs" / "mine" / "checkpoints" / "step-00000009"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    config = config_struct(run_config())
    with pytest.raises(AlreadyExists, match=" mine"):
        prepare_local_run(pb.StartRunRequest(config=config, run_id="mine"), tmp_path / "runs", lambda _: None)


def test_a_resume_that_ends_before_its_checkpoint_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = run_config(str(model))
    folder = tmp_path / "runs" / "mine"
    checkpoint = folder / "checkpoints" / "step-00000009"
    checkpoint.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    RunRecord("mine", folder, RunState.STOPPED, policy_version=9).save()
    manifest = {"checkpoint_id": "step-00000009", "attempt": 0, "policy_version": 9, "ledger_sha256": ""}
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "learner_files": []}))
    request = pb.StartRunRequest(run_id="mine", resume=True)
    request.config.update({"run": {"num_steps": 8}})
    with pytest.raises(InvalidArgument, match=r"run.num_steps: .* 9"):
        prepare_local_run(request, tmp_path / "runs", lambda _: None)
    request.config.update({"run": {"num_steps": 9}})
    assert prepare_local_run(request, tmp_path / "runs", lambda _: None).config.run.num_steps == 9


def test_a_misspelled_layer_is_refused_before_a_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_check, "find_spec", lambda name: None)  # Torch would take seconds to say the same.
    model = make_tiny_model(tmp_path / "model")
    lora = {"rank": 4, "target_modules": ["q_pro"]}
    config = parse_config(
        {"model": {"path": str(model)}, "data": {"sources": [{"task": "arithmetic"}]}, "learner": {"lora": lora}}
    )
    with pytest.raises(InvalidArgument, match=r'target_modules: "q_pro" .*q_proj'):
        prepare_local_run(pb.StartRunRequest(config=config_struct(config)), tmp_path / "runs", lambda _: None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("reload", "used"), [(None, True), (False, False), (True, True)])
def test_files_of_custom_verifiers_are_reloaded_unless_the_configuration_says_otherwise(
    tmp_path: Path, reload: bool | None, used: bool
) -> None:
    file = tmp_path / "score.py"
    file.write_text("def score(completion): return 1\n")
    mine: dict[str, Any] = {"file": str(file)} if reload is None else {"file": str(file), "reload": reload}
    tiny_model = make_tiny_model(tmp_path / "model")
    config = parse_config(
        {
            "model": {"path": str(tiny_model)},
            "data": {"sources": [{"task": "arithmetic", "verifier": "mine"}]},
            "reward": {"custom": {"mine": mine, "installed": {"entry_point": "json:dumps"}}},
        }
    )
    run = prepare_local_run(pb.StartRunRequest(config=config_struct(config)), tmp_path / "runs", lambda _: None)
    assert run.config.reward.custom["mine"].reload is used
    assert parse_config(run.request.config) == run.config, "the coordinator gets another configuration"
    assert json.loads(run.config.model_dump_json())["reward"]["custom"]["installed"]["reload"] is None


def test_a_run_that_a_coordinator_drives_is_not_resumed_and_its_folder_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    RunRecord("mine", folder, RunState.RUNNING).save()
    lock = RunLock(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(FailedPrecondition, match="mine") as refused:
        prepare_local_run(pb.StartRunRequest(run_id="mine", resume=True), tmp_path / "runs", lambda _: None)
    assert refused.value.reason == ErrorReason.RUN_ACTIVE and "shoal run watch" in refused.value.message
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    lock.release()
