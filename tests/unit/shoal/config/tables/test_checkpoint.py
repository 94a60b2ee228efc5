"""Tests of the checkpoint settings."""

from typing import Any

import pytest

from shoal.errors import InvalidArgument
from tests.support.configs import run_config

METRIC = "eval/verifiable_correct_rate"
QUESTIONS = {"sources": [{"task": "arithmetic", "task_seed": 1}]}


@pytest.mark.parametrize(
    "settings", [{}, {"export_every_steps": 10, "export_keep_last": 0}], ids=["nothing is exported", "all are kept"]
)
def test_the_best_export_is_chosen_only_where_others_are_deleted(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="needs export_every_steps and export_keep_last above 0"):
        run_config(checkpoint={"export_best_metric": "objective/scores", **settings})


@pytest.mark.parametrize("evaluation", [{}, QUESTIONS, QUESTIONS | {"every_steps": 4}])
@pytest.mark.parametrize("kind", ["export_", ""])
def test_a_metric_of_evaluations_needs_one_at_every_export_or_checkpoint(kind: str, evaluation: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=rf"divisor of checkpoint\.{kind}every_steps \(10; given: "):
        run_config(checkpoint={f"{kind}every_steps": 10, f"{kind}best_metric": METRIC}, evaluation=evaluation)


def test_the_best_evaluated_checkpoint_is_chosen_after_the_next_one_is_written() -> None:
    with pytest.raises(InvalidArgument, match=r"checkpoint\.keep_last .* 2 .*\(given: 1\)"):
        run_config(
            checkpoint={"every_steps": 5, "best_metric": METRIC, "keep_last": 1},
            evaluation=QUESTIONS | {"every_steps": 5},
        )


def test_every_export_may_be_evaluated_and_other_steps_too() -> None:
    both = {"export_every_steps": 10, "export_best_metric": METRIC, "every_steps": 5, "best_metric": METRIC}
    config = run_config(checkpoint=both, evaluation=QUESTIONS | {"every_steps": 5})
    assert config.checkpoint.best_metric == METRIC
    assert config.checkpoint.export_best_metric == METRIC
