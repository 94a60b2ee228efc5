"""configs/tools-quickstart.toml: a model of 135M parameters learns to use a calculator, on two CPU cores."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.local_stack import SHOAL
from tests.support.repository import ROOT

MAX_S = 900


@pytest.mark.timeout(MAX_S + 300)
def test_the_model_learns_to_call_the_calculator_within_a_quarter_of_an_hour(tmp_path: Path) -> None:
    began = time.monotonic()
    config = ROOT / "configs" / "tools-quickstart.toml"
    subprocess.run([str(SHOAL), "train", str(config), "--data-dir", str(tmp_path), "--name", "t"], check=True)
    took_s = time.monotonic() - began
    lines = [json.loads(line) for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]
    solved = [line["env/calculator/solved"] for line in lines if "time/step" in line]
    print(f"tools-quickstart: {took_s:.0f} s; solved {' '.join(f'{rate:.2f}' for rate in solved)}")
    assert solved[0] <= 0.25 and min(solved[-3:]) > 0.6, f"share of episodes that were solved, by step: {solved}"
    before, after = (line for line in lines if "eval/num_prompts" in line)
    rates = [[line[f"eval/verifiable_correct_rate{end}"] for end in ("", "_low", "_high")] for line in (before, after)]
    print(f"held-out products, with interval: before {rates[0]}, after {rates[1]}")
    assert rates[0][2] < rates[1][1] and after["eval/correct_rate_change_low"] > 0, rates
    assert took_s < MAX_S, f"{took_s:.0f} s"
