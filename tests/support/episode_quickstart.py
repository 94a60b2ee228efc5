"""A quickstart whose prompts are episodes, run whole: what it learned, and how long it took."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.local_stack import SHOAL
from tests.support.repository import ROOT

MAX_S = 900


@dataclass(frozen=True)
class Rate:
    """The share of held-out tasks that an evaluation solved, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Quickstart:
    """A run of a quickstart that has ended."""

    solved: list[float]
    """The share of episodes that were solved, by step."""
    before: Rate
    after: Rate
    change_low: float
    """The lower bound of the change from `before` to `after`."""
    took_s: float

    def check(self) -> None:
        """Fails unless the model got better beyond doubt, and in time."""
        assert self.before.high < self.after.low and self.change_low > 0, (self.before, self.after, self.change_low)
        assert self.took_s < MAX_S, f"{self.took_s:.0f} s"


def run_quickstart(name: str, environment: str, data_dir: Path) -> Quickstart:
    """Runs configs/NAME.toml, whose rows name one environment, and prints what it measured."""
    began = time.monotonic()
    config = ROOT / "configs" / f"{name}.toml"
    subprocess.run([str(SHOAL), "train", str(config), "--data-dir", str(data_dir), "--name", "t"], check=True)
    took_s = time.monotonic() - began
    lines = [json.loads(line) for line in (data_dir / "t" / "metrics.jsonl").read_text().splitlines()]
    solved = [line[f"env/{environment}/solved"] for line in lines if "time/step" in line]
    before, after = (line for line in lines if "eval/num_prompts" in line)
    measured = Quickstart(solved, _rate(before), _rate(after), after["eval/correct_rate_change_low"], took_s)
    print(f"{name}: {took_s:.0f} s; solved {' '.join(f'{rate:.2f}' for rate in solved)}")
    print(f"held-out tasks that were solved: before {measured.before}, after {measured.after}")
    return measured


def _rate(line: dict[str, Any]) -> Rate:
    return Rate(*(line[f"eval/verifiable_correct_rate{end}"] for end in ("", "_low", "_high")))
