"""`shoal export --push`, to a scripted hub over HTTP."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.store.run_record import RunRecord
from tests.support.exported_run import NAMES
from tests.support.parsed_commands import Shoal
from tests.support.repository import ROOT
from tests.support.scripted_hub import TOKEN, Repository, ScriptedHub, scripted_hub
from tests.support.wordings import numbers_in

Push = Callable[..., tuple[int, str]]
REPO = "me/sums"
_SHOAL = "from services.coordinator.cli import main; main()"


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    with scripted_hub() as hub:
        yield hub


@pytest.fixture
def push(shoal: Shoal, hub: ScriptedHub, run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Push:
    """Pushes the newest step, or that of the arguments; returns the exit code and all output."""
    # Set from the environment when the library is imported.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))

    def call(*arguments: str, token: str = TOKEN) -> tuple[int, str]:
        monkeypatch.setenv("HF_TOKEN", token)
        code, out, err = shoal("export", "sums", "--push", REPO, "--data-dir", str(run.folder.parent), *arguments)
        return code, out + err

    return call


def test_endpoint_and_token_come_from_the_environment(hub: ScriptedHub, run: RunRecord, tmp_path: Path) -> None:
    environment = os.environ | {
        "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", _SHOAL, "export", "--push", REPO, "--data-dir", str(run.folder.parent)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "step-20" in hub.repositories[REPO].tags


def test_each_step_is_a_commit_with_a_tag_in_a_private_repository(push: Push, hub: ScriptedHub) -> None:
    for step in (10, 20):
        code, out = push("--step", str(step))
        assert code == ExitCode.OK and f"{REPO}, revision step-{step}" in out, out
    repository = hub.repositories[REPO]
    assert repository.is_private and [numbers_in(text) for text in repository.messages] == [["10"], ["20"]]
    for step in (10, 20):
        files = repository.commits[repository.tags[f"step-{step}"]]
        assert sorted(files) == NAMES, sorted(files)
        assert files["model.safetensors"] == bytes([step]) * 300_000
    card = repository.commits[repository.head]["README.md"].decode()
    assert f'from_pretrained("{REPO}", revision="step-20")' in card, card


def test_files_of_an_earlier_step_that_a_later_one_lacks_are_not_in_its_commit(push: Push, hub: ScriptedHub) -> None:
    hub.repositories[REPO] = Repository(is_private=True)
    hub.repositories[REPO].commits["1" * 40] = {"model-00001-of-00002.safetensors": b"old"}
    code, out = push()
    assert code == ExitCode.OK, out
    assert sorted(hub.repositories[REPO].commits[hub.repositories[REPO].head]) == NAMES


def test_a_push_that_is_cut_off_leaves_no_commit_and_the_next_completes_it(push: Push, hub: ScriptedHub) -> None:
    hub.cuts_storage_after = 100_000
    code, out = push("--step", "10")
    assert code == ExitCode.UNAVAILABLE and "repeat the command" in out, out
    repository = hub.repositories[REPO]
    assert hub.cuts_storage_after == 0, "nothing was cut"
    assert list(repository.commits.values()) == [{}] and not repository.tags and not hub.storage
    hub.cuts_storage_after = None
    code, out = push("--step", "10")
    assert code == ExitCode.OK, out
    assert sorted(repository.commits[repository.tags["step-10"]]) == NAMES


def test_a_commit_without_its_tag_gets_it_from_the_next_push(push: Push, hub: ScriptedHub) -> None:
    hub.fails_at = "/tag/"
    code, out = push("--step", "10")
    assert code == ExitCode.UNAVAILABLE and "no revision step-10 yet" in out, out
    hub.fails_at = ""
    code, out = push("--step", "10")
    repository = hub.repositories[REPO]
    assert code == ExitCode.OK and repository.tags["step-10"] == repository.head, out


def test_a_step_is_not_pushed_twice(push: Push, hub: ScriptedHub) -> None:
    hub.repositories[REPO] = Repository(is_private=True, tags={"step-20": "0" * 40})
    code, out = push()
    assert code == ExitCode.PRECONDITION and "step-20" in out, out


@pytest.mark.parametrize(
    ("is_private", "arguments", "words"),
    [(False, [], "--public"), (True, ["--public"], "private")],
)
def test_the_visibility_of_a_repository_is_what_was_asked_for(
    push: Push, hub: ScriptedHub, is_private: bool, arguments: list[str], words: str
) -> None:
    hub.repositories[REPO] = Repository(is_private=is_private)
    code, out = push(*arguments)
    assert code == ExitCode.PRECONDITION and words in out, out
    assert list(hub.repositories[REPO].commits.values()) == [{}]


def test_a_public_repository_is_made_on_request(push: Push, hub: ScriptedHub) -> None:
    code, out = push("--public")
    assert code == ExitCode.OK and not hub.repositories[REPO].is_private, out


def test_without_a_token_nothing_is_sent_and_the_variable_is_named(push: Push, hub: ScriptedHub) -> None:
    code, out = push(token="")
    assert code == ExitCode.PRECONDITION and "set HF_TOKEN" in out, out
    assert hub.calls == []


@pytest.mark.parametrize(
    ("status", "part", "code", "words"),
    [
        (401, "/create", ExitCode.PRECONDITION, "token"),
        (409, "/create", ExitCode.PRECONDITION, "the repository exists"),
        (500, "/commit/", ExitCode.UNAVAILABLE, "repeat the command"),
    ],
)
def test_what_the_hub_answers_is_told_from_what_a_repeat_may_cure(
    push: Push, hub: ScriptedHub, status: int, part: str, code: ExitCode, words: str
) -> None:
    hub.fails_at, hub.fails_with = part, status
    found, out = push()
    assert found == code and words in out and str(status) in out, out
    assert not any(repository.tags for repository in hub.repositories.values())


def test_a_token_that_may_not_write_is_refused_and_not_shown(push: Push, hub: ScriptedHub) -> None:
    code, out = push(token="hf_a_token_to_read")
    assert code == ExitCode.PRECONDITION and "token" in out and "hf_a_token_to_read" not in out, out


def test_a_hub_that_is_not_there_is_named_in_a_sentence(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, out = push()
    assert code == ExitCode.UNAVAILABLE, out
    assert REPO in out and "http://127.0.0.1:9" in out, out
    assert "ConnectError" not in out, "a class name instead of a reason"


def test_a_dry_run_shows_card_files_and_place_and_asks_the_hub_to_change_nothing(push: Push, hub: ScriptedHub) -> None:
    code, out = push("--dry-run", "--step", "10")
    assert code == ExitCode.OK and not hub.repositories, out
    assert all("GET" in call for call in hub.calls), hub.calls
    assert "# sums, step 10" in out and "## Configuration" in out, out
    listed = [line.split()[-1] for line in out.splitlines() if line.split()[-1:] and line.split()[-1] in NAMES]
    assert listed == NAMES, out
    assert any({REPO, "private,", "step-10"} <= set(line.split()) for line in out.splitlines()), out
    assert "would stop the delivery" not in out, out


@pytest.mark.parametrize(
    ("token", "exists", "words"),
    [("", False, "set HF_TOKEN"), (TOKEN, True, "step-20"), ("hf_other", False, "(403)")],
)
def test_a_dry_run_says_what_would_stop_the_push(
    push: Push, hub: ScriptedHub, token: str, exists: bool, words: str
) -> None:
    if exists:
        hub.repositories[REPO] = Repository(is_private=True, tags={"step-20": "0" * 40})
    code, out = push("--dry-run", token=token)
    (said,) = (line for line in out.splitlines() if line.startswith("An error would stop the delivery"))
    assert code == ExitCode.OK and words in said and "# sums, step 20" in out, out


def test_a_dry_run_writes_no_folder(shoal: Shoal, run: RunRecord, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    code, out, err = shoal("export", "sums", "--dry-run", "--to", str(target), "--data-dir", str(run.folder.parent))
    assert code == ExitCode.OK and f"would go to {target}" in out, out + err
    assert not target.exists() and not list(run.folder.glob(".export-*"))
