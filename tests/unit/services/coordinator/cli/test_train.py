"""`shoal train`, up to its processes."""

from pathlib import Path

import pytest

from services.coordinator.cli.train import train
from services.coordinator.launcher.local_run import prepare_local_run
from services.coordinator.launcher.run_tokens import RunTokens
from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
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
        with pytest.raises(FailedPrecondition, match="run mine is driven by another `shoal train`"):
            train(config, name="mine", data_dir=runs, private=True)
        assert {path.name: path.read_text() for path in (first.folder / "tokens").iterdir()} == before
    with first.held():
        pass
