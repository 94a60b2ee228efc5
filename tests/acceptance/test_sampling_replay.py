"""The quickstart with top-k and top-p: the reward rises, and no ratio is biased by what sampling left out."""

import json
import statistics
from pathlib import Path

import pytest

from tests.support.local_stack import LocalStack
from tests.support.repository import ROOT

NUM_STEPS = 20


@pytest.mark.timeout(1800)
def test_the_quickstart_learns_to_add_from_restricted_samples(tmp_path: Path) -> None:
    changes = {"run.num_steps": NUM_STEPS, "sampling.top_k": 20, "sampling.top_p": 0.9}
    options = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    with LocalStack(tmp_path, "replay", str(ROOT / "configs/quickstart.toml"), *options) as stack:
        assert stack.wait(1500) == 0, stack.tail()
    rows = stack.metrics()
    rates = [row["objective/verifiable_correct_rate"] for row in rows]
    first, last = statistics.fmean(rates[:3]), statistics.fmean(rates[-5:])
    gaps, ratios = ([row[name] for row in rows] for name in ("val/logprob_gap_mean", "val/ratio"))
    print(f"\ncorrect rate {first:.3f} -> {last:.3f} over {len(rows)} steps: {json.dumps(rates)}")
    print(f"gap {min(gaps):.4f} to {max(gaps):.4f}, mean ratio {min(ratios):.4f} to {max(ratios):.4f}")
    assert len(rows) == NUM_STEPS
    assert last >= 0.5 and last >= 2 * first, f"correct rate {first} -> {last}"
    assert max(gaps) < 0.1, "more than bfloat16 explains"
    assert all(0.98 < ratio < 1.02 for ratio in ratios), ratios
