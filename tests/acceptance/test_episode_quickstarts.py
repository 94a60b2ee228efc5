"""The quickstarts whose prompts are episodes: a model of 135M parameters learns in them, on two CPU cores."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.local_stack import SHOAL
from tests.support.repository import ROOT

MAX_S = 900


@pytest.mark.timeout(MAX_S + 300)
@pytest.mark.parametrize(
    ("name", "environment"), [("game-quickstart", "guess_number"), ("tools-quickstart", "calculator")]
)
def test_the_model_learns_within_a_quarter_of_an_hour(name: str, environment: str, tmp_path: Path) -> None:
    began = time.monotonic()
    config = ROOT / "configs" / f"{name}.toml"
    subprocess.run([str(SHOAL), "train", str(config), "--data-dir", str(tmp_path), "--name", "t"], check=True)
    took_s = time.monotonic() - began
    lines = [json.loads(line) for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]
    solved = [line[f"env/{environment}/solved"] for line in lines if "time/step" in line]
    evaluations = [line for line in lines if "eval/num_prompts" in line]
    before, after = (
        [line[f"eval/verifiable_correct_rate{end}"] for end in ("_low", "", "_high")] for line in evaluations
    )
    print(f"{name}: {took_s:.0f} s; solved {' '.join(f'{rate:.2f}' for rate in solved)}")
    print(f"held-out tasks that were solved, with their interval: before {before}, after {after}")
    if name == "game-quickstart":
        assert sum(solved[-3:]) / 3 > sum(solved[:3]) / 3 + 0.15, f"share of games that were solved, by step: {solved}"
        assert after[1] > before[1] + 0.2
    else:
        assert solved[0] <= 0.25 and min(solved[-3:]) > 0.6, f"share of episodes that were solved, by step: {solved}"
    change_low = evaluations[-1]["eval/correct_rate_change_low"]
    assert before[2] < after[0] and change_low > 0, (before, after, change_low)
    assert took_s < MAX_S, f"{took_s:.0f} s"
