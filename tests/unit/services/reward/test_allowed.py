import argparse
from pathlib import Path

import pytest

from services.reward.allowed import Allowed, add_allowed_options, allowed_by
from shoal.config.tables.reward import RewardConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition


def refusal(allowed: Allowed, **reward: object) -> str:
    """The message of a refusal; empty if all is allowed."""
    try:
        allowed.check(RewardConfig.model_validate(reward))
    except FailedPrecondition as error:
        assert error.reason == ErrorReason.NOT_ALLOWED
        return error.message
    return ""


def custom(**table: str) -> dict[str, dict[str, str]]:
    return {"mine": table}


def test_nothing_is_allowed_unless_the_operator_says_so(tmp_path: Path) -> None:
    message = refusal(
        Allowed(),
        custom={"mine": {"file": str(tmp_path / "v.py")}, "other": {"entry_point": "os:system"}},
        judge={"base_url": "http://judge/v1", "model": "j", "api_key_env": "AWS_SECRET_ACCESS_KEY"},
    )
    for part in ("mine.file: ", "--allow-verifier-folder", "other.entry_point: os "):
        assert part in message, message
    assert "reward.judge.api_key_env" in message and "AWS_SECRET" not in message, message


def test_neither_dots_nor_links_lead_out_of_an_allowed_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "verifiers", tmp_path / "outside.py"
    folder.mkdir()
    outside.write_text("def score(completion): return 1")
    (folder / "link.py").symlink_to(outside)
    (folder / "below").mkdir()
    allowed = Allowed(verifier_folders=(folder,))
    assert not refusal(allowed, custom=custom(file=str(folder / "below" / "v.py")))
    no_paths = ("~nobody-of-that-name/v.py", f"{folder}/a\0b.py")
    for file in (folder / ".." / "outside.py", folder / "link.py", tmp_path / "verifiers-2" / "v.py", *no_paths):
        assert "is in no folder" in refusal(allowed, custom=custom(file=str(file))), file


def test_a_package_is_allowed_with_its_modules_and_no_other_of_a_longer_name() -> None:
    allowed = Allowed(verifier_packages=("ours",))
    assert not refusal(allowed, custom=custom(entry_point="ours.rewards:score"))
    assert "ours_not " in refusal(allowed, custom=custom(entry_point="ours_not:score"))


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://api.example.com/v1", True),
        ("https://api.example.com/v1/beta", True),
        ("https://api.example.com:443/v1", True),
        ("https://api.example.com/v10", False),
        ("https://api.example.com/v1/%2e%2e/other", False),
        ("https://api.example.com/v1/..\\other", False),
        ("https://api.example.com/v1/../other", False),
        ("https://api.example.com.evil.net/v1", False),
        ("http://api.example.com/v1", False),
        ("https://api.example.com:8443/v1", False),
    ],
)
def test_a_key_goes_only_to_the_server_that_it_is_for(url: str, is_allowed: bool) -> None:
    allowed = Allowed(api_keys=(("JUDGE_KEY", "https://api.example.com/v1"),))
    message = refusal(allowed, judge={"base_url": url, "model": "j", "api_key_env": "JUDGE_KEY"})
    assert (not message) is is_allowed, message


@pytest.mark.parametrize(
    ("model", "is_allowed"),
    [
        ({"path": "org/judge"}, True),
        ({"path": "org/pinned", "revision": "1a2b3c"}, True),
        ({"path": "org/judge", "revision": "refs/pr/7"}, False),
        ({"path": "org/pinned"}, False),
        ({"path": "org/other"}, False),
        ({"path": "org/other", "trust_remote_code": False}, True),
        ({"trust_remote_code": True}, True),
    ],
)
def test_the_code_of_a_reward_model_runs_only_if_that_revision_is_allowed(
    model: dict[str, object], is_allowed: bool
) -> None:
    allowed = Allowed(remote_code=("org/judge", "org/pinned@1a2b3c"))
    message = refusal(allowed, model={"trust_remote_code": True} | model)
    assert (not message) is is_allowed, message
    assert is_allowed or ("reward.model.trust_remote_code: org/" in message and "--allow-remote-code org/" in message)


def test_options_add_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ALLOW_VERIFIER_FOLDER", "/a /b")
    monkeypatch.setenv("SHOAL_ALLOW_API_KEY", "K=https://h/v1")
    monkeypatch.setenv("SHOAL_ALLOW_INTERPRETER", "/i")
    monkeypatch.setenv("SHOAL_ALLOW_REMOTE_CODE", "org/m@1")
    monkeypatch.setenv("SHOAL_ALLOW_PROGRAM", "/bin/e f\n\n/bin/g\n")
    parser = argparse.ArgumentParser()
    add_allowed_options(parser)
    options = ["--allow-verifier-folder", "/c", "--allow-verifier-package", "p", "--allow-reward-server", "h:7"]
    programs = ["--allow-program", "/bin/a --b 'c d'", "--allow-variable", "V", "--allow-remote-code", "n"]
    allowed = allowed_by(parser.parse_args([*options, *programs]))
    folders, key = (Path("/a"), Path("/b"), Path("/c")), ("K", "https://h/v1")
    started = (("/bin/e", "f"), ("/bin/g",), ("/bin/a", "--b", "c d"))
    assert allowed == Allowed(folders, ("p",), (key,), ("h:7",), ("/i",), started, ("V",), ("org/m@1", "n"))


@pytest.mark.parametrize(
    "value", ["sk-secret", "K=ftp://h", "=https://h", "K=https://h:sk-secret", "K=https://[sk-secret"]
)
def test_a_key_option_that_is_no_name_and_url_is_refused_without_repeating_it(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_allowed_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--allow-api-key", value])
    assert "JUDGE_KEY=https" in (message := capsys.readouterr().err) and "sk-secret" not in message, message


def test_a_variable_that_cannot_be_read_is_an_error_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in (("SHOAL_ALLOW_API_KEY", "sk-secret"), ("SHOAL_ALLOW_PROGRAM", "/bin/a 'b")):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setenv(variable, value)
            add_allowed_options(argparse.ArgumentParser())
        message = capsys.readouterr().err
        assert f"error: {variable}: --allow" in message and "sk-secret" not in message, message
