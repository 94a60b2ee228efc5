"""A checkpoint of two ranks at ZeRO stage 3, restored on one. tests/acceptance/test_resharding.py has every stage."""

from pathlib import Path

import pytest

from tests.integration.learner_resharding import assert_same_losses, result_of
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_what_two_ranks_saved_goes_on_on_one_with_the_same_losses(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    run_ranks("tests.integration.learner_resharding", (1, 2), str(tmp_path), "1", "3")
    assert_same_losses(tmp_path, "3", 1)
    assert result_of(tmp_path, "3", 1)["left"] == ["learner"], "the converted files are deleted"
