"""configs/tools-quickstart.toml: a model of 135M parameters learns to use a calculator, on two CPU cores."""

from pathlib import Path

import pytest

from tests.support.episode_quickstart import MAX_S, run_quickstart


@pytest.mark.timeout(MAX_S + 300)
def test_the_model_learns_to_call_the_calculator_within_a_quarter_of_an_hour(tmp_path: Path) -> None:
    run = run_quickstart("tools-quickstart", "calculator", tmp_path)
    assert run.solved[0] <= 0.25 and min(run.solved[-3:]) > 0.6, f"share of episodes that were solved: {run.solved}"
    run.check()
