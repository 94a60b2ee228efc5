"""`shoal reward` pays completions of a file as a run would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from services.coordinator.cli import configuration, main
from services.coordinator.cli.output import Output
from shoal.errors import InvalidArgument
from shoal.verifiers import BUILT_IN_VERIFIERS
from tests.tiny_model import make_tiny_model
from tests.unit.reward.judge_server import completion, graded, judge_server_beside

Shoal = Callable[..., tuple[int, str, str]]

RIGHT = {"completion": "<think>t</think> <answer>5</answer>", "ground_truth": "5", "verifier": "gsm8k"}
CUT_OFF = {"completion": "so 5", "ground_truth": 5, "dataset": "GSM8K", "finish_reason": "length", "weight": 2}
NO_LABEL = {"completion": "so 5", "ground_truth": ["5", "five"], "verifier": ["gsm8k", "gsm8k"]}


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shoal:
    """Runs the command line in this process, its children beside it; exit code, standard output and error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["shoal", "reward", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def rows_file(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_are_paid_by_the_composition_that_is_asked_for(shoal: Shoal, tmp_path: Path) -> None:
    form = (
        "--set",
        "reward.format.kind=r1",
        "--set",
        "reward.format.mode=add",
        "--set",
        "reward.verification_reward=10",
    )
    code, out, error = shoal("score", rows_file(tmp_path, RIGHT, CUT_OFF, NO_LABEL), *form, "-o", "json")
    assert code == 0, error
    answer = json.loads(out)
    assert [row["reward"] for row in answer["rows"]] == [11, 20, None]
    assert answer["rows"][0]["parts"] == {"verifiable": 10, "format": 1}
    assert [part["outcome"] for part in answer["rows"][2]["verifiers"]] == ["scored", "unscorable"]
    assert answer["summary"]["outcomes"] == {"scored": 2, "unscorable": 1}
    assert answer["summary"]["mean_reward"] == 15.5, "what cannot be judged is no 0"


def test_a_configuration_brings_its_rules_and_its_tokenizer(shoal: Shoal, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{model}"\n[[data.sources]]\npath = "unused.jsonl"\n'
        "[reward]\nnon_stop_penalty = -1\n[reward.length]\ncoef = 0.5\nmax_length_tokens = 1\n"
    )
    rows = rows_file(tmp_path, RIGHT, CUT_OFF)
    code, _, error = shoal("score", rows, "--config", str(config))
    assert code == 2 and "row 1 has no token_ids" in error and "--tokenize" in error, error
    code, out, error = shoal("score", rows, "--config", str(config), "--tokenize")
    assert code == 0, error
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["line", "outcome", "reward", "parts", "verifiers", "completion"]
    assert lines[1][:6] == ["1", "scored", "0.5", "verifiable=1", "length=-0.5", "non_stop=0"]
    assert lines[2][:3] == ["2", "scored", "-1"]


def test_a_judge_is_asked_and_its_cost_told(shoal: Shoal, tmp_path: Path) -> None:
    rows = [
        {"completion": "<think>x</think>Four.", "prompt": "2 + 2?", "ground_truth": "4", "verifier": "llm_judge"},
        {
            "completion": "Five.",
            "prompt": [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "2 + 3?"}],
            "ground_truth": ["5", "4 is even"],
            "verifier": ["gsm8k", "general-quality_ref"],
        },
        {"completion": "Six", "prompt": "3 + 3?", "ground_truth": "6", "verifier": "llm_judge"},
        {"completion": "Six", "prompt": "3 + 3?", "ground_truth": "6", "verifier": "llm_judge"},
    ]
    with judge_server_beside() as server:
        server.script = lambda number, body: completion("no idea") if "Six" in str(body) else graded(7)
        settings = [f"base_url={server.url}", "model=judge", "input_price=1", "output_price=5"]
        overrides = [part for setting in settings for part in ("--set", f"reward.judge.{setting}")]
        code, out, error = shoal("score", rows_file(tmp_path, *rows), *overrides, "-o", "json")
    assert code == 0, error
    answer = json.loads(out)
    assert [row["reward"] for row in answer["rows"]] == [0.7, 0.7, None, None], answer
    assert [row["outcome"] for row in answer["rows"]] == ["scored", "scored", "unscorable", "unscorable"]
    assert "100 tokens in, 20 out, cost 0.0002" in answer["rows"][0]["verifiers"][0]["detail"]
    # Two that are alike are asked once; a reply that is no verdict costs as much.
    judge = {"questions": 4, "asked": 3, "input_tokens": 300, "output_tokens": 60, "cost": pytest.approx(0.0006)}
    assert answer["summary"]["judge"] == judge
    shown = [request["messages"][1]["content"] for request in server.requests]
    assert any("2 + 2?" in text and "Four." in text and "<think>" not in text for text in shown), shown
    assert any("system: Be exact.\nuser: 2 + 3?" in text for text in shown), shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verifier": "gsm9k"}, "rows.jsonl:1: no verifier is called 'gsm9k'"),
        ({"completion": None}, "rows.jsonl:1: completion must be a text (found: NoneType)"),
        ({"finish_reason": "eos"}, "rows.jsonl:1: finish_reason must be 'stop' or 'length' (found: 'eos')"),
        ({"token_ids": [0.5]}, "rows.jsonl:1: token_ids must be a list of integers"),
        ({"token_ids": [2**31]}, "rows.jsonl:1: token_ids must be a list of integers from 0 to 2^31 - 1"),
        ({"completion": "\ud800"}, "rows.jsonl:1: completion is not valid Unicode"),
        ({"verifier": "llm_judge"}, "rows.jsonl:1: a judge needs a prompt"),
        ({"verifier": "reward_model"}, "rows.jsonl:1: a reward model needs a prompt"),
        ({"prompt": [{"role": "user"}]}, "rows.jsonl:1: each of prompt needs a role and a content"),
        ({"weight": "2"}, "rows.jsonl:1: weight must be a positive number, at most 1e+30 (found: '2')"),
        ({"weight": float("nan")}, "rows.jsonl:1: weight must be a positive number, at most 1e+30 (found: nan)"),
        ({"weight": 1e308}, "rows.jsonl:1: weight must be a positive number, at most 1e+30 (found: 1e+308)"),
    ],
)
def test_a_malformed_row_is_named_before_any_process_is_started(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    code, _, error = shoal("score", rows_file(tmp_path, RIGHT | change))
    assert code == 2 and message in error, error


@pytest.mark.parametrize(
    "setting", ["reward.weights.gsm9k=0.5", "reward.remap.gsm8k=gsm9k", "reward.weights.gsm8k=-1e40"]
)
def test_a_setting_that_a_run_would_refuse_is_refused(shoal: Shoal, tmp_path: Path, setting: str) -> None:
    code, _, error = shoal("score", rows_file(tmp_path, RIGHT), "--set", setting)
    said = "no verifier is called 'gsm9k'" if "gsm9k" in setting else "reward.weights.gsm8k must be at most 1e+30"
    assert code == 2 and said in error, error


def test_every_verifier_is_described(shoal: Shoal) -> None:
    code, out, error = shoal("list", "--output", "json")
    assert code == 0, error
    listed = json.loads(out)
    assert {verifier["name"] for verifier in listed} == BUILT_IN_VERIFIERS
    assert all(verifier["description"] for verifier in listed)
    code, out, _ = shoal("list")
    assert "gsm8k (reads text)" in out


def test_verifiers_of_yours_score_and_are_described(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(
        'def score(completion, label, prompt):\n    """Label: a word."""\n'
        "    return (label in completion) + (prompt == 'Why?') if label else None\n"
    )
    config = tmp_path / "run.toml"
    config.write_text(
        '[model]\npath = "unused"\n[[data.sources]]\npath = "unused.jsonl"\n[reward.custom.Mine]\nfile = "score.py"\n'
    )
    mine = {"completion": "so 5", "ground_truth": "5", "verifier": "MINE"}
    rows = rows_file(tmp_path, mine, mine | {"prompt": "Why?"}, mine | {"ground_truth": ""})
    code, out, error = shoal("score", rows, "--config", str(config), "-o", "json")
    assert code == 0, error
    assert [row["reward"] for row in json.loads(out)["rows"]] == [1, 2, None]
    code, out, error = shoal("list", "--config", str(config))
    assert code == 0 and "mine (reads completion label prompt)\n    code " in out and "    Label: a word." in out, out
    code, _, error = shoal("score", rows, "--set", f"reward.custom.mine.file={tmp_path / 'none.py'}")
    assert code == 2 and f"reward.custom.mine.file: there is no file {tmp_path / 'none.py'}" in error, error
    code, _, error = shoal("score", rows, "--config", str(config), "--set", "reward.custom.Mine.function=judge")
    assert code == 2 and "reward.custom.mine.function: " in error and "it has: score" in error, error
    code, _, error = shoal("score", rows, "--set", "reward.servers.other.address=127.0.0.1:1")
    assert code == 1 and "reward.servers.other.address: 127.0.0.1:1 does not list its verifiers" in error, error


def test_a_deep_check_tries_verifiers_of_yours_and_says_what_it_cannot_know(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "score.py").write_text("import no_such_module\n")
    data = tmp_path / "data.jsonl"
    data.write_text('{"messages": "Why?", "ground_truth": "x", "dataset": "mine"}\n')
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{make_tiny_model(tmp_path / "model")}"\n[[data.sources]]\npath = "{data}"\n'
        "[data]\nmax_prompt_tokens = 200\n[sampling]\nmax_completion_tokens = 8\n"
    )

    def check(*overrides: str) -> dict[str, Any]:
        configuration.check(config, overrides, deep=True, output=Output.JSON)
        facts: dict[str, Any] = json.loads(capfd.readouterr().out)
        return facts

    mine = f"reward.custom.mine.file={tmp_path / 'score.py'}"
    with pytest.raises(typer.Exit) as refused:
        check(mine)
    said = capfd.readouterr().err
    assert refused.value.exit_code == 2 and "score.py does not import: ModuleNotFoundError" in said, said
    (tmp_path / "score.py").write_text("def score(completion): return 1\n")
    assert set(check(mine)["custom_verifiers"]) == {"mine"}
    with pytest.raises(InvalidArgument, match="no verifier is called 'mine'"):
        check("reward.custom.other.file=/no/file.py")
    facts = check("reward.custom.far.file=/no/file.py", "reward.servers.s.address=h:1")
    assert facts["custom_verifiers_not_on_this_machine"] == ["far"]
    assert facts["reward_servers_not_asked"] == ["h:1"]
    assert facts["verifiers_not_known_before_the_run_starts"] == ["mine"]
