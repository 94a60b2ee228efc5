"""Notes on settings that do less, or more, than they seem to."""

from typing import Any

import pytest

from shoal.config.notes import notes_on
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


def config(verifier: str | list[str] = "gsm8k", **sections: Any) -> Any:
    return run_config(data={"sources": [{"path": "d", "verifier": verifier}]}, **sections)


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ({"length": {"coef": 0.5, "only_correct": False}}, "reward.length"),
        ({"cosine": {"factor": 1}}, "reward.cosine"),
        ({"overlong": {"factor": 1, "buffer_tokens": 8}}, "reward.overlong"),
        ({"repetition": {"max_penalty": -1}}, "reward.repetition"),
        ({"style": {"steps": 1}}, "reward.style"),
        ({"format": {"kind": "r1", "mode": "add"}}, "reward.format"),
        ({"non_stop_penalty": -1}, "reward.non_stop_penalty"),
    ],
)
def test_shaping_that_tells_wrong_completions_apart_is_noted_with_the_settings_that_leave_them_out(
    reward: dict[str, Any], named: str
) -> None:
    (note,) = notes_on(config(reward=reward, grpo={"active_sampling": True}))
    assert note.startswith(named) and "active_sampling" in note
    assert "grpo.difficulty_low = 0" in note and 'grpo.filter_groups_by = "correct"' in note
    for grpo in ({"difficulty_low": 0}, {"filter_groups_by": "correct"}, {"keep_zero_signal": True}):
        assert notes_on(config(reward=reward, grpo=grpo)) == [], grpo


def test_a_verifier_that_says_nothing_is_noted_as_shaping() -> None:
    (note,) = notes_on(config(["gsm8k", "soft_overlong"]))
    assert note.startswith("the verifier soft_overlong") and "active_sampling" not in note
    assert notes_on(config(["gsm8k", "r1_format", "passthrough"])) == []


def test_shaping_of_right_completions_alone_is_no_matter() -> None:
    assert notes_on(config(reward={"length": {"coef": 0.5}, "format": {"kind": "r1"}})) == []


@pytest.mark.parametrize(
    ("coordinator", "named"),
    [
        ({}, ""),
        ({"sampling_timeout_s": 2000}, ""),
        ({"sampling_timeout_s": 600}, "coordinator.sampling_timeout_s: 600 s"),
        ({"train_step_timeout_s": 3600}, ""),
        ({"train_step_timeout_s": 60}, "coordinator.train_step_timeout_s: 60 s"),
    ],
)
def test_a_deadline_that_is_too_short_for_the_lengths_is_noted(coordinator: dict[str, Any], named: str) -> None:
    sampling = {"max_completion_tokens": 32_768}
    notes = notes_on(config(sampling=sampling, coordinator=coordinator, grpo={"groups_per_step": 64}))
    assert len(notes) == bool(named) and all(note.startswith(named) for note in notes), notes


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("checkpoint.export_every_steps", {}),
        ("evaluation.every_steps", {"sources": [{"path": "e", "verifier": "gsm8k"}]}),
        ("kl.reference_update_steps", {"coef": 0.1}),
    ],
)
def test_a_period_that_is_longer_than_the_run_is_noted(field: str, given: dict[str, Any]) -> None:
    table, _, name = field.partition(".")
    for num_steps, is_noted in ((9, True), (10, False)):
        notes = notes_on(config(run={"num_steps": num_steps}, **{table: {**given, name: 10}}))
        assert [note.partition(":")[0] for note in notes] == [field] * is_noted, notes


@pytest.mark.parametrize(("num_steps", "num_notes"), [(10, 1), (100, 1), (101, 0), (0, 0)])
def test_a_warm_up_that_does_not_end_within_the_run_is_noted(num_steps: int, num_notes: int) -> None:
    run = {"num_steps": num_steps} if num_steps else {"total_epochs": 1}
    notes = notes_on(config(run=run, learner={"lr_scheduler": "linear", "warmup_steps": 100}))
    assert len(notes) == num_notes, notes
    if num_steps == 10:
        assert "9%" in notes[0] and notes[0].startswith("learner.warmup_steps"), notes


def test_a_warm_up_that_is_given_as_a_share_is_named_so() -> None:
    (note,) = notes_on(config(run={"num_steps": 1}, learner={"lr_scheduler": "linear", "warmup_ratio": 0.5}))
    assert note.startswith("learner.warmup_ratio: "), note


@pytest.mark.parametrize(
    ("schedule", "num_cycles", "is_noted"),
    [
        ("cosine_with_restarts", 20, True),
        ("cosine_with_restarts", 5, False),
        ("cosine", 10, True),
        ("cosine", 0.5, False),
        ("cosine", None, False),
    ],
)
def test_waves_of_which_the_steps_see_nothing_are_noted(schedule: str, num_cycles: float, is_noted: bool) -> None:
    learner = {"lr_scheduler": schedule, "lr_num_cycles": num_cycles}
    notes = notes_on(config(run={"num_steps": 10}, learner=learner))
    assert [note.partition(":")[0] for note in notes] == ["learner.lr_num_cycles"] * is_noted, notes


@pytest.mark.parametrize(
    ("schedule", "fits"),
    [
        ({"lr_decay_steps": 100}, False),
        ({"lr_decay_steps": 15, "warmup_steps": 15}, False),
        ({"lr_decay_steps": 5, "warmup_steps": 6}, False),
        ({"lr_decay_steps": 5, "warmup_steps": 5}, True),
    ],
)
def test_a_decay_that_does_not_fit_the_run_is_refused(schedule: dict[str, int], fits: bool) -> None:
    sections = {"run": {"num_steps": 10}, "learner": {"lr_scheduler": "warmup_stable_decay", **schedule}}
    if fits:
        config(**sections)
        return
    with pytest.raises(InvalidArgument) as caught:
        config(**sections)
    assert [violation.field for violation in caught.value.violations] == ["learner.lr_decay_steps"]
