"""`shoal reward score` scores a file as a run would; `shoal reward list` describes verifiers."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from tests.support.parsed_commands import Shoal
from tests.support.tiny_model import make_tiny_model
from tests.support.wordings import has_all
from tests.unit.services.reward.judge.judge_server import completion, graded, judge_server_beside

RIGHT = {"completion": "<think>t</think> <answer>5</answer>", "ground_truth": "5", "verifier": "gsm8k"}
CUT_OFF = {"completion": "so 5", "ground_truth": 5, "dataset": "GSM8K", "finish_reason": "length", "weight": 2}
NO_LABEL = {"completion": "so 5", "ground_truth": ["5", "five"], "verifier": ["gsm8k", "gsm8k"]}


def rows_file(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_get_the_reward_of_the_configured_composition(shoal: Shoal, tmp_path: Path) -> None:
    settings = ("reward.format.kind=r1", "reward.format.mode=add", "reward.verification_reward=10")
    form = [part for setting in settings for part in ("--set", setting)]
    code, out, error = shoal("reward", "score", rows_file(tmp_path, RIGHT, CUT_OFF, NO_LABEL), *form, "-o", "json")
    assert code == 0, error
    answer = json.loads(out)
    assert [row["reward"] for row in answer["rows"]] == [11, 20, None]
    assert answer["rows"][0]["parts"] == {"verifiable": 10, "format": 1}
    assert [part["outcome"] for part in answer["rows"][2]["verifiers"]] == ["scored", "unscorable"]
    assert answer["summary"]["outcomes"] == {"scored": 2, "unscorable": 1}
    assert answer["summary"]["mean_reward"] == 15.5, "an unscorable row counted as 0"


def test_a_configuration_brings_its_rules_and_its_tokenizer(shoal: Shoal, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{model}"\n[[data.sources]]\npath = "unused.jsonl"\n'
        "[reward]\nnon_stop_penalty = -1\n[reward.length]\ncoef = 0.5\nmax_length_tokens = 1\n"
    )
    rows = rows_file(tmp_path, RIGHT, CUT_OFF)
    code, _, error = shoal("reward", "score", rows, "--config", str(config))
    assert code == 2 and has_all(error, "row 1 ", "token_ids", "--tokenize"), error
    code, out, error = shoal("reward", "score", rows, "--config", str(config), "--tokenize")
    assert code == 0, error
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["line", "outcome", "reward", "parts", "verifiers", "completion"]
    assert lines[1][:6] == ["1", "scored", "0.5", "verifiable=1", "length=-0.5", "non_stop=0"]
    assert lines[2][:3] == ["2", "scored", "-1"]


def test_a_failing_verifier_is_shown_with_its_whole_cause_and_ends_with_code_1(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(
        "def score(completion):\n"
        "    if completion == 'none': return None\n"
        "    if completion == 'text': return 'good'\n"
        "    if completion == 'raise': raise ValueError('a long way to what is essential: \\x1b[2J' + 'x' * 60)\n"
        "    print('seen:', completion)\n"
        "    return 1\n"
    )
    mine = ("--set", f"reward.custom.mine.file={tmp_path / 'score.py'}")

    def score(*completions: str) -> tuple[int, str]:
        rows = [{"completion": text, "ground_truth": "", "verifier": "mine"} for text in completions]
        code, out, error = shoal("reward", "score", rows_file(tmp_path, *rows), *mine)
        assert ("mine: seen: good\n" in error) == ("good" in completions), error
        return code, out

    code, out = score("good", "raise", "text", "raise", "none")
    assert code == 1, out
    assert "lines 2, 4: mine failed: " in out and f"ValueError at {tmp_path}/score.py:4: " in out, out
    assert "<U+001B>[2J" in out and "\x1b" not in out, "a control character reached the terminal"
    assert has_all(out, "x" * 60, "line 3: mine failed: ", "'good'", "line 5: mine unscorable: ", "None"), out
    assert score("good", "none")[0] == 0, "an unscorable row is no failure"
    assert score("none")[0] == 1, "no row has a reward"
    assert score(*["raise"] * 8)[1].count("lines 1, 2, 3, 4, 5 ") == 1


def test_thoughts_are_no_answers_unless_they_are_kept(shoal: Shoal, tmp_path: Path) -> None:
    label = {"ground_truth": "5", "verifier": "gsm8k"}
    rows = [
        RIGHT,
        {"completion": "<think>so 5", **label},
        {"completion": "so 5", "prompt": "2 + 3?", **label},
        {"completion": "so 5", "prompt": "User: 2 + 3?\nAssistant: <think>", **label},
        {"completion": "so 5</think>5", "prompt": "User: 2 + 3?\nAssistant: <think>", **label},
    ]

    def rewards(*settings: str) -> list[float]:
        code, out, error = shoal("reward", "score", rows_file(tmp_path, *rows), *settings, "-o", "json")
        assert code == 0, error
        return [row["reward"] for row in json.loads(out)["rows"]]

    assert rewards() == [1, 0, 1, 0, 1]
    assert rewards("--set", 'reward.keep_thoughts=["GSM8K"]') == [1, 1, 1, 1, 1]


def test_only_verifiers_that_read_answers_keep_thoughts(shoal: Shoal, tmp_path: Path) -> None:
    row = rows_file(tmp_path, RIGHT)
    code, _, error = shoal("reward", "score", row, "--set", 'reward.keep_thoughts=["gsm8k", "mine"]')
    assert code == 2 and "reward.keep_thoughts" in error and "mine" in error, error


def test_a_judge_scores_rows_and_its_cost_is_shown(shoal: Shoal, tmp_path: Path) -> None:
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
        code, out, error = shoal("reward", "score", rows_file(tmp_path, *rows), *overrides, "-o", "json")
    assert code == 0, error
    answer = json.loads(out)
    assert [row["reward"] for row in answer["rows"]] == [0.7, 0.7, None, None], answer
    assert [row["outcome"] for row in answer["rows"]] == ["scored", "scored", "unscorable", "unscorable"]
    assert has_all(answer["rows"][0]["verifiers"][0]["detail"], "100 ", "20 ", "0.0002")
    # Equal questions are sent once. A reply without a verdict costs as much as one with it.
    judge = {"questions": 4, "asked": 3, "input_tokens": 300, "output_tokens": 60, "cost": pytest.approx(0.0006)}
    assert answer["summary"]["judge"] == judge
    shown = [request["messages"][1]["content"] for request in server.requests]
    assert any("2 + 2?" in text and "Four." in text and "<think>" not in text for text in shown), shown
    assert any(has_all(text, "Be exact.", "2 + 3?") for text in shown), shown


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"verifier": "gsm9k"}, ["'gsm9k'"]),
        ({"completion": None}, ["completion ", "(found: NoneType)"]),
        ({"finish_reason": "eos"}, ["finish_reason ", "(found: 'eos')"]),
        ({"token_ids": [0.5]}, ["token_ids "]),
        ({"token_ids": [2**31]}, ["token_ids ", "2^31 - 1"]),
        ({"completion": "\ud800"}, ["completion "]),
        ({"verifier": "llm_judge"}, ["judge ", "prompt"]),
        ({"verifier": "reward_model"}, ["reward model ", "prompt"]),
        ({"prompt": [{"role": "user"}]}, ["prompt[0] "]),
        ({"weight": "2"}, ["weight ", "1e+30", "(found: '2')"]),
        ({"weight": float("nan")}, ["weight ", "1e+30", "(found: nan)"]),
        ({"weight": 1e308}, ["weight ", "1e+30", "(found: 1e+308)"]),
    ],
)
def test_a_malformed_row_is_named_before_any_process_is_started(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: list[str]
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    code, _, error = shoal("reward", "score", rows_file(tmp_path, RIGHT | change))
    assert code == 2 and has_all(error, "rows.jsonl:1: ", *named), error


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("reward.weights.gsm9k=0.5", ["'gsm9k'"]),
        ("reward.remap.gsm8k=gsm9k", ["'gsm9k'"]),
        ("reward.weights.gsm8k=-1e40", ["reward.weights.gsm8k ", "1e+30"]),
    ],
)
def test_a_setting_that_a_run_would_refuse_is_refused(
    shoal: Shoal, tmp_path: Path, setting: str, named: list[str]
) -> None:
    code, _, error = shoal("reward", "score", rows_file(tmp_path, RIGHT), "--set", setting)
    assert code == 2 and has_all(error, *named), error


def test_a_row_without_a_completion_and_a_missing_file_are_named(shoal: Shoal, tmp_path: Path) -> None:
    row = {"response" if name == "completion" else name: value for name, value in RIGHT.items()}
    code, _, error = shoal("reward", "score", rows_file(tmp_path, row))
    assert code == 2 and has_all(error, "rows.jsonl:1: ", "'completion'", ": response, "), error
    for path in (tmp_path / "missing.jsonl", tmp_path):
        code, _, error = shoal("reward", "score", str(path))
        assert code == 2 and str(path) in error and ".parquet" in error, error


def test_every_verifier_is_described(shoal: Shoal) -> None:
    code, out, error = shoal("reward", "list", "--output", "json")
    assert code == 0, error
    listed = json.loads(out)
    assert {verifier["name"] for verifier in listed} == BUILT_IN_VERIFIERS
    assert all(verifier["description"] for verifier in listed)
    code, out, _ = shoal("reward", "list")
    assert "gsm8k (reads answer)" in out


def test_custom_verifiers_score_and_are_described(shoal: Shoal, tmp_path: Path) -> None:
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
    code, out, error = shoal("reward", "score", rows, "--config", str(config), "-o", "json")
    assert code == 0, error
    assert [row["reward"] for row in json.loads(out)["rows"]] == [1, 2, None]
    code, out, error = shoal("reward", "list", "--config", str(config))
    assert code == 0 and "\nmine (" in f"\n{out}" and "    Label: a word." in out, out
    code, _, error = shoal("reward", "score", rows, "--set", f"reward.custom.mine.file={tmp_path / 'none.py'}")
    assert code == 2 and has_all(error, "reward.custom.mine.file: ", str(tmp_path / "none.py")), error
    code, _, error = shoal(
        "reward", "score", rows, "--config", str(config), "--set", "reward.custom.Mine.function=judge"
    )
    assert code == 2 and "reward.custom.mine.function: " in error and "it has: score" in error, error
    code, _, error = shoal("reward", "score", rows, "--set", "reward.servers.other.address=127.0.0.1:1")
    assert code == 1 and "reward.servers.other.address: 127.0.0.1:1 " in error, error
