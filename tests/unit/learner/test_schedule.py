"""The learning rate's course."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.learner.schedule import learning_rate
from shoal.config import RunConfig, parse_config

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "metrics.json"
KINDS = {
    "lr_schedule_constant_with_warmup": "constant",
    "lr_schedule_linear": "linear",
    "lr_schedule_cosine": "cosine",
}


def config(num_steps: int, **learner: Any) -> RunConfig:
    values = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}, "run": {"num_steps": num_steps}}
    return parse_config(values | {"learner": learner})


def golden() -> list[Any]:
    if not GOLDEN.exists():
        return []
    cases = json.loads(GOLDEN.read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["variant"] in KINDS]


@pytest.mark.parametrize("case", golden())
def test_the_rate_is_that_of_the_golden_case(case: dict[str, Any]) -> None:
    settings = case["config"]
    if settings.get("num_cycles", 0.5) != 0.5:
        pytest.skip("more than half a cosine is not offered")
    run = config(
        settings.get("num_training_steps") or 1000,
        learning_rate=settings["peak_learning_rate"],
        warmup_steps=settings.get("num_warmup_steps") or 0,
        lr_scheduler=KINDS[case["variant"]],
    )
    # Past the last step of the run the golden cosine would rise again.
    pairs = zip(case["inputs"]["steps"], case["expected"]["learning_rates"], strict=True)
    expected = {step: rate for step, rate in pairs if step <= settings.get("num_training_steps", step)}
    got = {step: learning_rate(run, step) for step in expected}
    assert got == pytest.approx(expected, rel=1e-6, abs=case["tolerance"])


def test_the_course_is_over_all_optimizer_steps_of_the_run() -> None:
    values = {
        "model": {"path": "m"},
        "data": {"sources": [{"task": "arithmetic"}]},
        "run": {"num_steps": 10},
        "grpo": {"num_epochs": 2, "num_mini_batches": 4, "groups_per_step": 8},
        "learner": {"learning_rate": 1.0, "lr_scheduler": "linear"},
    }
    run = parse_config(values)
    assert [learning_rate(run, step) for step in (0, 40, 80, 90)] == [1.0, 0.5, 0.0, 0.0]
