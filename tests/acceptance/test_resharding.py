"""Checkpoints of two ranks restored on one and on four, at every ZeRO stage, of a whole model and of adapters."""

from pathlib import Path

import pytest

from tests.integration.learner_resharding import assert_same_losses, result_of
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(1200)

STAGES = ("0", "1", "2", "3", "0-lora", "2-lora", "3-lora")
TIMES = 2
"""Restores, the second into a learner that has trained."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two ranks that saved and went on, and of one and four that restored, side by side."""
    folder = tmp_path_factory.mktemp("resharding")
    make_tiny_model(folder / "model")
    run_ranks("tests.integration.learner_resharding", (1, 2, 4), str(folder), str(TIMES), *STAGES)
    return folder


@pytest.mark.parametrize("num_ranks", [1, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_what_two_ranks_saved_goes_on_on_another_number_with_the_same_losses(
    folder: Path, stage: str, num_ranks: int
) -> None:
    for attempt in range(1, TIMES + 1):
        assert_same_losses(folder, stage, num_ranks, attempt=attempt)
    assert result_of(folder, stage, num_ranks)["left"] == ["learner"], "the converted files are deleted"
