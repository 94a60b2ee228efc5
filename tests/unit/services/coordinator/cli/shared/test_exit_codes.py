"""Bad input ends with one clear message and the documented exit code, before any process is started."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from services.coordinator.run.checks import extras
from tests.support.parsed_commands import Shoal
from tests.support.small_disk import small_disk
from tests.support.tiny_model import make_tiny_model

Refuse = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def refuse(shoal: Shoal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refuse:
    """Runs `shoal` in this process, without processes of a run; returns its exit code and standard error."""
    monkeypatch.setattr(
        "services.coordinator.launcher.supervisor.LoggedProcess",
        lambda *_: pytest.fail("a process was started in spite of bad input"),
    )
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("SHOAL_COORDINATOR", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        code, _, error = shoal(*arguments)
        return code, error

    return run


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    data = tmp_path / "data.jsonl"
    rows = [{"messages": f"What is {i} + 1?", "ground_truth": str(i + 1), "dataset": "gsm8k"} for i in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\npath = "{tiny_model}"\n[[data.sources]]\npath = "{data}"\n'
        "[data]\nmax_prompt_tokens = 200\n[sampling]\nmax_completion_tokens = 8\n"
    )
    return path


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("grpo.groupsize=4", ["grpo.groupsize: ", "'group_size'"]),
        ("grpo.group_size=1", ["grpo.group_size: ", "at least 2", "'group_mean'", "(given: 1)"]),
        ("grpo.num_mini_batches=3", ["groups_per_step (8)", "num_mini_batches (3)"]),
        ("run.name=Not a name", ["run.name: ", "63"]),
        ("sampling.top_p=0.9", ["sampling.top_p"]),
        ("kl.beta=0.1", ["kl.beta", "note: ", "kl.coef"]),
        ("learner.lr=1e-6", ["note: learner.lr: ", "  learner.lr: ", "learner.learning_rate"]),
        ("grpo.bs=4", ["  grpo.bs: ", "grpo.groups_per_step"]),
        ("grpo.batch_size=4", ["grpo.groups_per_step or reward.model.batch_size"]),
        ("sampling.temp=1", ["  sampling.temp: ", "'temperature'"]),
        ("learner.temperature=1", ["learner.temperature: ", "sampling.temperature or "]),
        ("grpo=3", ["grpo: ", "table", "(given: 3)"]),
        ("data.sources=rows.jsonl", ["data.sources: ", "list", "(given: 'rows.jsonl')"]),
        ("nonsense", ["--set 'nonsense'", "section.field=value"]),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_the_cure(
    refuse: Refuse, config: Path, override: str, named: list[str]
) -> None:
    for command in (["train"], ["config", "check"]):
        code, error = refuse(*command, str(config), "--set", override)
        assert code == 2 and all(part in error for part in named), f"{code}: {error}"


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["nowhere.toml"], 2, ["nowhere.toml"]),
        (["{config}", "--set", "model.path=/nowhere/model"], 2, ["model.path: ", "/nowhere/model"]),
        (["--resume", "yesterday"], 4, ["'yesterday'", "{runs}"]),
        (["{config}", "--resume", "mine", "--name", "other"], 2, ["CONFIG", "--name"]),
    ],
)
def test_what_a_run_begins_with_is_named_where_it_is_not_there_or_does_not_fit(
    refuse: Refuse, config: Path, tmp_path: Path, arguments: list[str], code: int, parts: list[str]
) -> None:
    ended, error = refuse("train", *(one.format(config=config) for one in arguments))
    assert ended == code and all(part.format(runs=tmp_path / "runs") in error for part in parts), error


def test_a_custom_verifier_that_cannot_work_is_refused_before_a_process_starts(refuse: Refuse, config: Path) -> None:
    file = config.parent / "score.py"
    mine = ("--set", f"reward.custom.mine.file={file}", "--set", "reward.remap.gsm8k=mine")
    code, error = refuse("train", str(config), *mine)
    assert code == 2 and "reward.custom.mine.file: " in error and str(file) in error, error
    file.write_text("def score(completion): return 'good'\n")
    code, error = refuse("train", str(config), *mine, "--set", "model.path=/nowhere/model")
    assert code == 2 and "reward.custom.mine: " in error and "'good'" in error, error


def test_a_model_without_weights_is_refused(refuse: Refuse, config: Path, tiny_model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    code, error = refuse("train", str(config), "--set", f"model.path={bare}")
    assert code == 2 and str(bare) in error and "weights" in error, error


def test_a_deep_check_finds_malformed_labels(refuse: Refuse, config: Path) -> None:
    data = config.parent / "data.jsonl"
    with data.open("a") as file:
        for label in ("many", "several", "many"):
            file.write(json.dumps({"messages": "How many?", "ground_truth": label, "dataset": "gsm8k"}) + "\n")
    code, error = refuse("config", "check", str(config), "--deep")
    for part in ("3 of 7", f"{data} row 5 (gsm8k): ", 'data.malformed_labels = "drop"'):
        assert code == 2 and part in error, error
    code, error = refuse("config", "check", str(config), "--deep", "--set", "data.malformed_labels=drop")
    assert code == 0 and "left out: 3 of 7" in error, error
    code, error = refuse("config", "check", str(config), "--deep", "--set", "data.malformed_labels=keep")
    assert code == 0 and "left out" not in error, error


@pytest.mark.parametrize(
    ("max_prompt_tokens", "parts"),
    [(5, ["data.max_prompt_tokens: ", " 5 tokens"]), (4096, ["generator.max_model_len: 4104 ", "2048"])],
    ids=["every prompt is too long", "the context is longer than the model's"],
)
def test_a_deep_check_refuses_lengths_that_do_not_fit(
    refuse: Refuse, config: Path, max_prompt_tokens: int, parts: list[str]
) -> None:
    code, error = refuse(
        "config", "check", str(config), "--deep", "--set", f"data.max_prompt_tokens={max_prompt_tokens}"
    )
    assert code == 2 and all(part in error for part in parts), error


def test_a_port_in_use_is_refused(refuse: Refuse, config: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, error = refuse("train", str(config), "--set", f"launch.coordinator_port={port}")
    assert code == 5 and f"launch.coordinator_port: port {port} " in error, error


def test_an_extra_that_is_not_installed_is_named_with_its_cure(
    refuse: Refuse, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = extras.importlib.util.find_spec
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == "vllm" else find_spec(name))
    code, error = refuse("train", str(config))
    assert code == 3 and "vllm " in error and "pip install 'shoal[generator]'" in error, error


def test_a_full_disk_is_refused(refuse: Refuse, config: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", "256k") as disk:
        disk.fill()
        code, error = refuse("train", str(config), "--data-dir", str(disk.folder))
    assert code == 5 and f"--data-dir: the disk of {disk.folder} is full" in error, error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["workers"], 2, "--coordinator HOST:PORT"),
        (["run", "status", "--coordinator", "here"], 2, "(given: 'here')"),
        (["workers", "--coordinator", "127.0.0.1:1"], 6, "127.0.0.1:1"),
        (["run", "status", "\udcff", "--coordinator", "127.0.0.1:1"], 2, "'\\udcff'"),
        (["run", "watch", "--coordinator", "127.0.0.1:1"], 6, "127.0.0.1:1"),
        (["run", "stop", "--mode", "later"], 2, "later"),
    ],
)
def test_a_coordinator_that_cannot_be_called_is_named(
    refuse: Refuse, arguments: list[str], code: int, message: str
) -> None:
    assert (result := refuse(*arguments))[0] == code and message in result[1], result
