"""Real DeepSpeed on one, two and three ranks: every way to configure the loss has one gradient, and trains."""

from pathlib import Path

import pytest

from tests.integration.test_learner_losses import check_gradients, check_steps, train
from tests.loss_variants import VARIANTS

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses")
    train(folder, VARIANTS)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_does_not_depend_on_the_number_of_ranks(folder: Path, variant: str) -> None:
    check_gradients(folder, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_of_two_mini_batches_and_two_epochs_are_taken_and_measured_alike(folder: Path, variant: str) -> None:
    check_steps(folder, variant)
