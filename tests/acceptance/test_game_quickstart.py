"""configs/game-quickstart.toml: a model of 135M parameters learns a game of several turns, on two CPU cores."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.local_stack import SHOAL
from tests.support.repository import ROOT

MAX_S = 900


@pytest.mark.timeout(MAX_S + 300)
def test_the_model_learns_to_guess_the_number_within_a_quarter_of_an_hour(tmp_path: Path) -> None:
    began = time.monotonic()
    config = ROOT / "configs" / "game-quickstart.toml"
    subprocess.run([str(SHOAL), "train", str(config), "--data-dir", str(tmp_path), "--name", "t"], check=True)
    took_s = time.monotonic() - began
    lines = [json.loads(line) for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]
    solved = [line["env/guess_number/solved"] for line in lines if "time/step" in line]
    print(f"game-quickstart: {took_s:.0f} s; solved {' '.join(f'{rate:.2f}' for rate in solved)}")
    before, after = (line for line in lines if "eval/num_prompts" in line)
    rates = [[line[f"eval/verifiable_correct_rate{end}"] for end in ("", "_low", "_high")] for line in (before, after)]
    print(f"games of the evaluations that were solved, with interval: before {rates[0]}, after {rates[1]}")
    assert rates[0][2] < rates[1][1] and after["eval/correct_rate_change_low"] > 0, rates
    assert rates[1][0] > rates[0][0] + 0.2, rates
    first, last = sum(solved[:3]) / 3, sum(solved[-3:]) / 3
    assert last > first + 0.15, f"share of games that were solved, by step: {solved}"
    assert took_s < MAX_S, f"{took_s:.0f} s"
