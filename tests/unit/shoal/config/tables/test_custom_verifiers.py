"""Tests of `reward.custom` and `reward.servers`: verifier names and file paths."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config import load_config
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"custom": {"gsm8k": {"file": "/s.py"}}}, "reward.custom: 'gsm8k' is the name of a built-in verifier"),
        (
            {"custom": {"a b": {"file": "/s.py"}}},
            "reward.custom: 'a b' is not a name for a verifier: use 1 to 63 characters of a-z",
        ),
        ({"custom": {"M": {"file": "/s.py"}, "m": {"file": "/s.py"}}}, "reward.custom: 'm' occurs twice"),
        ({"custom": {"m": {}}}, "reward.custom.m: give file or entry_point"),
        ({"custom": {"m": {"file": "/s.py", "entry_point": "a:b"}}}, "reward.custom.m: give file or entry_point, not"),
        ({"custom": {"m": {"entry_point": "a.b"}}}, "must be of the form \"package.module:function\" (given: 'a.b')"),
        ({"custom": {"m": {"entry_point": "a:b", "reload": True}}}, "reload watches a file"),
        (
            {"custom": {"m": {"file": "s.py"}}},
            "reward.custom.m.file: must be an absolute path",
        ),
        ({"custom": {"m": {"file": "/s.py", "fuction": "f"}}}, "m.fuction: unknown key; did you mean 'function'?"),
        ({"servers": {"s": {}}}, "reward.servers.s.address: is required"),
        ({"servers": {"s": {"address": "host"}}}, "reward.servers.s.address: must be host:port"),
        ({"servers": {"s": {"address": "h:1", "verifiers": ["math"]}}}, "'math' is the name of a built-in"),
        (
            {"custom": {"m": {"file": "/s.py"}}, "servers": {"s": {"address": "h:1", "verifiers": ["M"]}}},
            "reward.servers.s.verifiers: reward.custom.m already has 'm'",
        ),
    ],
)
def test_an_invalid_table_is_refused_with_its_field(reward: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        run_config(reward=reward)
    assert message in error.value.message, error.value.message


def test_relative_paths_start_at_the_toml_file_and_those_of_set_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = tmp_path / "runs" / "run.toml"
    path.write_text(
        '[model]\npath = "m"\n[[data.sources]]\ntask = "arithmetic"\n'
        '[reward.custom.One]\nfile = "code/one.py"\n[reward.custom.home]\nfile = "~/home.py"\n'
        '[reward.custom.far]\nfile = "/srv/far.py"\n'
    )
    loaded = load_config(path, ["reward.custom.two.file=two.py"])
    files = {name: table.file for name, table in loaded.reward.custom.items()}
    assert files == {
        "one": str(tmp_path / "runs" / "code" / "one.py"),
        "two": str(tmp_path / "elsewhere" / "two.py"),
        "home": "~/home.py",
        "far": "/srv/far.py",
    }


def test_the_known_verifiers_are_those_of_the_tables_unless_a_server_must_be_asked_for_its_names() -> None:
    tables = {"custom": {"Mine": {"file": "/s.py"}}, "servers": {"s": {"address": "h:1", "verifiers": ["Style"]}}}
    reward = run_config(reward=tables).reward
    assert reward.known_verifiers == reward.verifiers_here >= BUILT_IN_VERIFIERS | {"mine", "style"}
    tables["servers"]["t"] = {"address": "h:2"}
    reward = run_config(reward=tables).reward
    assert reward.known_verifiers is None and "mine" in reward.verifiers_here
