"""The form of messages to people: each names what is wrong, where, and how to cure it."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.launcher.checks import check_folder, check_port
from services.coordinator.run.checks.extras import REWARD, check_extras
from services.coordinator.store.run_folders import RunFolders, locate_run
from services.coordinator.store.run_record import RunRecord
from shoal.config import load_config, parse_config
from shoal.config.load import load_overrides
from shoal.config.tables.data import SourceConfig
from shoal.data.files import read_files
from shoal.errors import ShoalError
from shoal.models.model_folder import model_config, resolve_model
from shoal.rpc.auth.tls import TlsFolder
from shoal.suggest import suggest
from shoal.translate import translate_arguments

CURES = re.compile(
    r"\b(add|allow|choose|copy|did you mean|end|free|for example|give|install|known|leave|make|must|name|needs?|"
    r"pip install|remove|rename|restore|resume|set|start|use)\b"
)
RUN = {"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}}


def faults_of_form(message: str, *named: str) -> list[str]:
    """Returns what is wrong with the form of a message, which has to name its subject and its value."""
    faults = {
        "it is empty": not message.strip(),
        "it ends in punctuation": message.rstrip().endswith((".", ":", ";", ",")),
        "it has two spaces or one before punctuation": bool(re.search(r"\S  \S| [,;:.](\s|$)|\.\.\s", message)),
        "it begins like a sentence": bool(re.match(r"[A-Z][a-z]+ [a-z]", message)),
        "it shows an object of Python": bool(re.search(r"<class |object at 0x|Errno|Traceback|\bNone\b", message)),
        "it has no cure": not CURES.search(message),
        **{f"it does not name {part}": part not in message for part in named},
    }
    return [fault for fault, is_there in faults.items() if is_there]


def _of_port() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        check_port(holder.getsockname()[1], "launch.coordinator_port")


def _of_config(**sections: Any) -> Callable[[Path], object]:
    return lambda folder: parse_config(RUN | sections)


def _of_file(name: str, text: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    def fail(folder: Path) -> object:
        (folder / name).write_text(text)
        return read(folder / name)

    return fail


def _rows(path: Path) -> object:
    return read_files(SourceConfig(path=str(path)))


MESSAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "an unknown field": (_of_config(grpo={"groupsize": 4}), ("grpo.groupsize", "group_size")),
    "a value out of range": (_of_config(grpo={"group_size": 1}), ("grpo.group_size", "2", "given: 1")),
    "a value of another type": (_of_config(grpo=3), ("grpo", "given: 3")),
    "tables that do not fit": (
        _of_config(run={"deterministic": True}, grpo={"max_staleness": 2}), ("run.deterministic", "grpo.max_staleness"),
    ),
    "an override without a value": (lambda folder: load_overrides(["nonsense"]), ("--set 'nonsense'",)),
    "a configuration that is not there": (lambda folder: load_config(folder / "run.toml"), ("run.toml",)),
    "a configuration that is no TOML": (_of_file("run.toml", "[run\n", load_config), ("run.toml",)),
    "a model that is not there": (lambda folder: resolve_model("/nowhere/model"), ("model.path", "/nowhere/model")),
    "a folder that is no model": (lambda folder: model_config(str(folder)), ("model.path",)),
    "a file of rows that is not there": (lambda folder: _rows(folder / "rows.jsonl"), ("rows.jsonl",)),
    "a file of another kind": (_of_file("rows.csv", "a,b\n", _rows), ("rows.csv", ".jsonl")),
    "a port that is taken": (lambda folder: _of_port(), ("launch.coordinator_port",)),
    "a folder that cannot be written": (
        _of_file("file", "", lambda path: check_folder(path / "runs")), ("--data-dir: ", "file/runs"),
    ),
    "a run that is not there": (lambda folder: RunFolders(folder).find("sums"), ("'sums'",)),
    "a path without a run": (lambda folder: locate_run(f"{folder}/none", folder), ("/none",)),
    "a damaged record": (_of_file("run.json", "[]", lambda path: RunRecord.load(path.parent)), ("run.json",)),
    "a lost configuration": (lambda folder: RunRecord("sums", folder).load_config(), ("sums", "config.json")),
    "certificates that are not there": (lambda folder: TlsFolder(folder / "certs"), ("certs",)),
    "an unknown task": (lambda folder: suggest("poems", 24, "m"), ("'poems'", "math_reasoning")),
    "a flag without its name": (lambda folder: translate_arguments("trl", ["8"]), ("'8'",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_names_its_subject_and_value_and_ends_with_a_cure(kind: str, tmp_path: Path) -> None:
    fail, named = MESSAGES[kind]
    with pytest.raises(ShoalError) as caught:
        fail(tmp_path)
    assert not faults_of_form(caught.value.message, *named), caught.value.message


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ShoalError) as caught:
        check_extras([REWARD])
    assert not faults_of_form(caught.value.message, "math_verify", "'shoal[reward]'"), caught.value.message


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("", "it is empty"),
        ("grpo.group_size must be at least 2.", "it ends in punctuation"),
        ("Use another  name", "it has two spaces or one before punctuation"),
        ("The name is taken: choose another", "it begins like a sentence"),
        ("m: [Errno 2] x: give another", "it shows an object of Python"),
        ("it is broken", "it has no cure"),
    ],
)
def test_a_fault_of_form_is_found(message: str, fault: str) -> None:
    assert fault in faults_of_form(message)
