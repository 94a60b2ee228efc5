"""`shoal config check --deep`: labels and custom verifiers."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.launcher import disk
from tests.support.tiny_model import make_tiny_model


def test_a_deep_check_tries_custom_verifiers_and_names_those_that_it_cannot_reach(
    shoal: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "score.py").write_text("import no_such_module\n")
    data = tmp_path / "data.jsonl"
    data.write_text('{"messages": "Why?", "ground_truth": "x", "dataset": "mine"}\n')
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{make_tiny_model(tmp_path / "model")}"\n[[data.sources]]\npath = "{data}"\n'
        "[data]\nmax_prompt_tokens = 200\n[sampling]\nmax_completion_tokens = 8\n"
    )

    def check(*overrides: str) -> tuple[int, dict[str, Any], str]:
        options = [option for override in overrides for option in ("--set", override)]
        code, out, error = shoal("config", "check", str(config), "--deep", "-o", "json", *options)
        return code, json.loads(out or "{}"), error

    mine = f"reward.custom.mine.file={tmp_path / 'score.py'}"
    code, _, error = check(mine)
    assert code == 2 and "score.py does not import: ModuleNotFoundError" in error, error
    (tmp_path / "score.py").write_text("def score(completion): return 1\n")
    assert set(check(mine)[1]["custom_verifiers"]) == {"mine"}
    code, _, error = check("reward.custom.other.file=/no/file.py")
    assert code == 2 and "no verifier is called 'mine'" in error, error
    _, facts, _ = check("reward.custom.far.file=/no/file.py", "reward.servers.s.address=h:1")
    assert facts["custom_verifiers_not_on_this_machine"] == ["far"]
    assert facts["reward_servers_not_asked"] == ["h:1"]
    assert facts["verifiers_not_known_before_the_run_starts"] == ["mine"]


def test_a_deep_check_gives_the_size_of_checkpoints_and_warns_when_the_disk_is_too_small(
    shoal: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{make_tiny_model(tmp_path / "model")}"\n[[data.sources]]\ntask = "arithmetic"\n'
        "[data]\nmax_prompt_tokens = 200\n[sampling]\nmax_completion_tokens = 8\n[learner]\nzero_stage = 0\n"
    )
    command = ("config", "check", str(config), "--deep", "-o", "json", "--data-dir", str(tmp_path / "runs"))
    code, out, error = shoal(*command)
    facts = json.loads(out)
    num_weights = (tmp_path / "model" / "model.safetensors").stat().st_size // 4
    assert (code, facts["checkpoint_bytes"]) == (0, 12 * num_weights), error
    assert facts["disk_bytes_needed"] < facts["disk_bytes_free"]
    assert "note: a checkpoint takes about" in error and f"are free for {tmp_path / 'runs'}" in error, error
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    code, _, error = shoal(*command)
    assert code == 0 and "1000 bytes are free" in error and "which is too little" in error, error
