"""Checkpoints of two ranks, restored on one: at ZeRO stage 3, and at the stage that they chose themselves.

tests/acceptance/test_resharding.py has every stage.
"""

from pathlib import Path

import pytest

from tests.integration.learner_resharding import assert_same_losses, result_of
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_what_two_ranks_saved_goes_on_on_one_with_the_same_losses(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    run_ranks("tests.integration.learner_resharding", (1, 2), str(tmp_path), "1", "3", "unset")
    for stage in ("3", "unset"):
        assert_same_losses(tmp_path, stage, 1)
        assert result_of(tmp_path, stage, 1)["left"] == ["learner"], "the converted files are deleted"
