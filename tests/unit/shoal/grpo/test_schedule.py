"""Learning-rate schedules against those of transformers."""

from typing import Any, get_args

import pytest
import torch
from transformers import SchedulerType, get_scheduler

from shoal.config import RunConfig
from shoal.config.tables.learner import Scheduler
from shoal.errors import InvalidArgument
from shoal.grpo.schedule import learning_rate
from shoal.translate.shared.setters import REFUSED_SCHEDULERS
from tests.support.configs import run_config


def config(num_steps: int = 100, grpo: dict[str, Any] | None = None, **learner: Any) -> RunConfig:
    return run_config(run={"num_steps": num_steps}, grpo=grpo or {}, learner={"learning_rate": 1e-3} | learner)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"lr_scheduler": "constant"}, {}),
    ({"lr_scheduler": "constant_with_warmup", "warmup_steps": 9}, {}),
    ({"lr_scheduler": "linear", "warmup_steps": 9}, {}),
    ({"lr_scheduler": "cosine", "warmup_steps": 9}, {}),
    ({"lr_scheduler": "cosine", "lr_num_cycles": 1.25}, {"num_cycles": 1.25}),
    ({"lr_scheduler": "cosine_with_restarts", "warmup_steps": 4}, {}),
    ({"lr_scheduler": "cosine_with_restarts", "lr_num_cycles": 3}, {"num_cycles": 3}),
    ({"lr_scheduler": "cosine_with_min_lr", "warmup_steps": 9, "lr_min_ratio": 0.2}, {"min_lr_rate": 0.2}),
    (
        {"lr_scheduler": "cosine_warmup_with_min_lr", "warmup_steps": 9, "lr_min_ratio": 0.2},
        {"min_lr_rate": 0.2},
    ),
    (
        {
            "lr_scheduler": "cosine_warmup_with_min_lr", "warmup_steps": 9, "lr_min_ratio": 0.2, "lr_num_cycles": 1.5,
            "lr_warmup_start_ratio": 0.3,
        },
        {"min_lr_rate": 0.2, "num_cycles": 1.5, "warmup_lr_rate": 0.3},
    ),
    (
        {
            "lr_scheduler": "cosine_warmup_with_min_lr", "warmup_steps": 1, "lr_min_ratio": 0.0,
            "lr_warmup_start_ratio": 0.5,
        },
        {"min_lr_rate": 0.0, "warmup_lr_rate": 0.5},
    ),
    ({"lr_scheduler": "cosine_warmup_with_min_lr", "lr_min_ratio": 0.1}, {"min_lr_rate": 0.1}),
    ({"lr_scheduler": "polynomial", "lr_power": 2.5, "lr_min_ratio": 0.1}, {"power": 2.5, "lr_end": 1e-4}),
    ({"lr_scheduler": "inverse_sqrt"}, {}),
    ({"lr_scheduler": "inverse_sqrt", "warmup_steps": 9}, {}),
    ({"lr_scheduler": "inverse_sqrt", "warmup_steps": 9, "lr_timescale": 30}, {"timescale": 30}),
    ({"lr_scheduler": "warmup_stable_decay", "warmup_steps": 9, "lr_decay_steps": 20}, {"num_decay_steps": 20}),
    (
        {"lr_scheduler": "warmup_stable_decay", "warmup_steps": 9, "lr_decay_steps": 91},
        {"num_decay_steps": 91},
    ),
    (
        {
            "lr_scheduler": "warmup_stable_decay", "warmup_steps": 9, "lr_decay_steps": 20, "lr_min_ratio": 0.3,
            "lr_warmup_shape": "cosine", "lr_decay_shape": "linear",
        },
        {"num_decay_steps": 20, "min_lr_ratio": 0.3, "warmup_type": "cosine", "decay_type": "linear"},
    ),
    (
        {
            "lr_scheduler": "warmup_stable_decay", "warmup_steps": 9, "lr_decay_steps": 20, "lr_num_cycles": 1.5,
            "lr_warmup_shape": "1-sqrt",
        },
        {"num_decay_steps": 20, "num_cycles": 1.5, "warmup_type": "1-sqrt"},
    ),
    (
        {"lr_scheduler": "warmup_stable_decay", "lr_decay_steps": 20, "lr_decay_shape": "1-sqrt"},
        {"num_decay_steps": 20, "decay_type": "1-sqrt"},
    ),
]  # fmt: skip


def test_every_scheduler_of_transformers_is_supported_or_refused_with_the_reason() -> None:
    theirs = {scheduler.value for scheduler in SchedulerType}
    offered = set(get_args(Scheduler))
    assert offered == {learner["lr_scheduler"] for learner, _ in CASES}, "each is compared with theirs"
    assert theirs == offered | set(REFUSED_SCHEDULERS)


@pytest.mark.parametrize(("learner", "theirs"), CASES)
def test_every_optimizer_step_has_the_rate_that_transformers_gives_it(
    learner: dict[str, Any], theirs: dict[str, Any]
) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    scheduler = get_scheduler(
        learner["lr_scheduler"], optimizer, learner.get("warmup_steps", 0), 100, scheduler_specific_kwargs=theirs
    )
    run = config(**learner)
    for step in range(104):
        assert learning_rate(run, step) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12), f"step {step}"
        optimizer.step()
        scheduler.step()


def test_the_schedule_covers_all_optimizer_steps_of_the_run() -> None:
    grpo = {"num_epochs": 2, "num_mini_batches": 4, "groups_per_step": 8}
    run = config(10, grpo, learning_rate=1.0, lr_scheduler="linear")
    assert [learning_rate(run, step) for step in (0, 40, 80, 90)] == [1.0, 0.5, 0.0, 0.0]


def test_a_warmup_ratio_counts_optimizer_steps_and_is_rounded_up() -> None:
    grpo = {"num_epochs": 3, "num_mini_batches": 1}
    run = config(15, grpo, learning_rate=1.0, lr_scheduler="constant_with_warmup", warmup_ratio=0.1)
    assert [learning_rate(run, step) for step in range(6)] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ({"warmup_steps": 3}, 'choose "constant_with_warmup"'),
        ({"lr_scheduler": "linear", "warmup_steps": 3, "warmup_ratio": 0.1}, r"warmup_steps \(3\) or warmup_ratio"),
        ({"lr_scheduler": "linear", "lr_power": 2}, "lr_power is an option of lr_scheduler polynomial, "),
        ({"lr_scheduler": "cosine_with_min_lr"}, "needs lr_min_ratio"),
        ({"lr_scheduler": "warmup_stable_decay"}, "needs lr_decay_steps"),
        ({"lr_scheduler": "cosine_with_restarts", "lr_num_cycles": 1.5}, r"lr_num_cycles \(1.5\) must be a whole"),
    ],
)
def test_an_option_without_effect_is_refused(learner: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        config(**learner)
