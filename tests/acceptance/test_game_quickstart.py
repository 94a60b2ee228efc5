"""configs/game-quickstart.toml: a model of 135M parameters learns a game of several turns, on two CPU cores."""

from pathlib import Path

import pytest

from tests.support.episode_quickstart import MAX_S, run_quickstart


@pytest.mark.timeout(MAX_S + 300)
def test_the_model_learns_to_guess_the_number_within_a_quarter_of_an_hour(tmp_path: Path) -> None:
    run = run_quickstart("game-quickstart", "guess_number", tmp_path)
    first, last = sum(run.solved[:3]) / 3, sum(run.solved[-3:]) / 3
    assert last > first + 0.15, f"share of games that were solved, by step: {run.solved}"
    assert run.after.value > run.before.value + 0.2, run
    run.check()
