"""Tests of the translation of learning-rate schedules."""

from typing import Any

import pytest

from tests.support.translations import ROLL_GUIDE, config_of, translate_values


@pytest.mark.parametrize(
    ("system", "name", "base"),
    [
        ("trl", "lr_scheduler_type", {"max_steps": 10}),
        ("roll", "actor_train.training_args.lr_scheduler_type", None),
        ("open-instruct", "lr_scheduler_type", {}),
    ],
)
def test_schedulers_of_transformers_are_translated_and_others_refused_with_the_reason(
    system: str, name: str, base: dict[str, Any] | None
) -> None:
    values = ROLL_GUIDE if base is None else base
    assert translate_values(system, values | {name: "cosine"}).values["learner"]["lr_scheduler"] == "cosine"
    for refused, reason in (
        ("reduce_lr_on_plateau", "waits for a loss"),
        ("greedy", "follows a loss"),
        ("x", "no such"),
    ):
        (refusal,) = [item for item in translate_values(system, values | {name: refused}).blocking if item.name == name]
        assert reason in refusal.reason and "cosine_with_min_lr" in refusal.reason


def test_scheduler_options_become_fractions_of_the_peak_rate() -> None:
    base = {"max_steps": 10, "learning_rate": 1e-5}
    options = {"min_lr": 1e-6, "warmup_lr_rate": 0.1}
    learner = config_of(
        "trl", base | {"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": options}
    ).learner
    assert learner.lr_scheduler == "cosine_warmup_with_min_lr"
    assert (learner.lr_min_ratio, learner.lr_warmup_start_ratio) == (pytest.approx(0.1), 0.1)
    assert config_of("trl", base | {"lr_scheduler_type": "polynomial"}).learner.lr_min_ratio == pytest.approx(0.01)
    kwargs = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_stable_steps": 3}}
    assert "num_stable_steps" in str(translate_values("trl", base | kwargs).blocking[0])
