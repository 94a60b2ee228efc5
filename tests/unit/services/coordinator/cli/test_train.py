"""`shoal train`, up to its processes."""

from pathlib import Path

import pytest
import typer

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.train import train
from services.coordinator.launcher.local_run import prepare_local_run
from services.coordinator.launcher.run_tokens import RunTokens
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, NotFound
from shoal.v1 import coordinator_pb2 as pb
from tests.support.configs import run_config
from tests.support.tiny_model import make_tiny_model


def test_a_run_that_another_shoal_train_begins_keeps_its_tokens_and_its_folder(tmp_path: Path) -> None:
    model, runs = make_tiny_model(tmp_path / "model"), tmp_path / "runs"
    config = tmp_path / "run.toml"
    config.write_text(f'[model]\npath = "{model}"\n[[data.sources]]\ntask = "arithmetic"\n')
    request = pb.StartRunRequest(run_id="mine")
    request.config.update({"model": {"path": str(model)}, "data": {"sources": [{"task": "arithmetic"}]}})
    first = prepare_local_run(request, runs, lambda _: None)
    with first.held():  # Its coordinator has not accepted it yet, so the folder has no run.json.
        RunTokens(first.folder / "tokens")
        before = {path.name: path.read_text() for path in (first.folder / "tokens").iterdir()}
        with pytest.raises(FailedPrecondition, match="mine") as refused:
            train(config, name="mine", data_dir=runs, private=True)
        assert refused.value.reason == ErrorReason.RUN_ACTIVE
        assert {path.name: path.read_text() for path in (first.folder / "tokens").iterdir()} == before
    with first.held():
        pass


def test_a_run_is_resumed_by_the_path_of_its_folder(tmp_path: Path) -> None:
    record = RunRecord("sums", tmp_path / "sums", RunState.FINISHED, "finished after step 3", policy_version=3)
    record.folder.mkdir()
    record.save()
    record.save_config(run_config())
    with pytest.raises(FailedPrecondition, match="step 3"):
        train(resume=f"{record.folder}/")
    with pytest.raises(NotFound, match="/none"):
        train(resume=str(tmp_path / "none"))


def test_a_judges_key_that_is_missing_is_named_before_a_run_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{make_tiny_model(tmp_path / "model")}"\n[[data.sources]]\ntask = "arithmetic"\n'
        '[reward.judge]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "judge"\napi_key_env = "NO_SUCH_KEY"\n'
    )
    with pytest.raises(typer.Exit) as ended:
        train(config, name="mine", data_dir=tmp_path / "runs")
    assert ended.value.exit_code == ExitCode.USAGE and not (tmp_path / "runs" / "mine").exists()
    assert "reward.judge.api_key_env: " in (error := capfd.readouterr().err) and "NO_SUCH_KEY" in error, error
