"""The ZeRO stages that tests/integration/test_learner_ranks.py leaves out: what it tests of others holds for them."""

from pathlib import Path

import pytest

from tests.integration import test_learner_ranks as others
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

STAGES = ("2", "1-offloaded", "3-offloaded", "2-lora", "0-nf4", "3-nf4")
FROZEN_STAGES = ("0-frozen", "2-frozen")
COMPARED = ("0", "0-lora")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny_model(folder / "model")
    run_ranks("tests.integration.learner_ranks", (1, 2), str(folder), *STAGES, *FROZEN_STAGES, *COMPARED)
    return folder


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_steps_restores_and_exports_are_those_of_other_stages(folder: Path, stage: str) -> None:
    others.test_the_gradient_on_two_ranks_is_that_of_one(folder, stage)
    others.test_a_step_on_two_ranks_reports_the_metrics_of_a_step_on_one(folder, stage)
    others.test_the_exported_model_computes_what_the_ranks_computed(folder, stage)
    for num_ranks in (1, 2):
        others.test_a_step_that_is_not_finite_on_one_rank_is_applied_on_none(folder, stage, num_ranks)
        others.test_a_restored_learner_takes_the_same_step_to_the_bit(folder, stage, num_ranks)
        others.test_a_learner_that_is_restored_with_changes_obeys_them(folder, stage, num_ranks)
        others.test_a_checkpoint_gives_the_folders_that_the_learner_exports(folder, stage, num_ranks)


def test_adapters_at_stage_2_are_exported_and_alone_in_checkpoints(folder: Path) -> None:
    others.test_merged_model_and_adapter_of_an_export_give_the_same_logprobs(folder, "2-lora")
    for num_ranks in (1, 2):
        others.test_a_checkpoint_holds_the_adapters_and_not_the_frozen_model(folder, "2", num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", FROZEN_STAGES)
def test_a_frozen_part_is_neither_trained_nor_saved(folder: Path, stage: str, num_ranks: int) -> None:
    others.test_a_restored_learner_takes_the_same_step_to_the_bit(folder, stage, num_ranks)
    others.test_a_checkpoint_gives_the_folders_that_the_learner_exports(folder, stage, num_ranks)
    others.test_a_frozen_part_keeps_its_weights_and_has_neither_gradient_nor_optimizer_state(folder, stage, num_ranks)
    others.test_the_gradient_of_the_trained_part_is_that_of_the_whole_model(folder, stage)
    others.test_a_checkpoint_holds_no_frozen_weights(folder, stage, num_ranks)
