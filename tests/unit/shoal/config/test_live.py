from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.changes import changed_fields, fixed_fields
from shoal.config.live import LiveConfig, live_fields, only_at_once, updated_config, when_live, without_at_once
from shoal.errors import InvalidArgument

BEGUN: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"sources": [{"path": "d.jsonl"}]},
    "run": {"num_steps": 20},
    "kl": {"coef": 0.01},
}


def test_no_field_is_both_live_and_fixed() -> None:
    fixed = [name for name, _ in fixed_fields()]
    both = [(live, name) for live, _ in live_fields() for name in fixed if f"{name}.".startswith(f"{live}.")]
    assert not both, both


def test_fields_of_a_live_table_are_live() -> None:
    live = when_live("loss.clip_high")
    assert live is not None and live.when == "next step"
    assert when_live("sampling.temperature") is None


def test_only_what_does_not_alter_training_changes_at_once() -> None:
    config = parse_config(BEGUN)
    changed = updated_config(config, {"loss": {"clip_high": 0.3}, "checkpoint": {"every_steps": 3}})
    now = only_at_once(config, changed)
    assert list(changed_fields(config, now)) == ["checkpoint.every_steps"]
    assert list(changed_fields(config, changed)) == ["checkpoint.every_steps", "loss.clip_high"]


def test_a_change_leaves_the_configuration_before_it_as_it_was() -> None:
    before = parse_config(BEGUN)
    config = LiveConfig(before)
    config.current = only_at_once(before, updated_config(before, {"evaluation": {"every_steps": 3}}))
    assert config().evaluation.every_steps == 3
    assert before == parse_config(BEGUN) == without_at_once(config())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kl": {"coef": 0.0}}, "kl.coef"),
        ({"grpo": {"group_size": 4}}, "grpo.group_size"),
        ({"reward": {"weights": {"math": 0.5}}}, "reward.weights.math"),
    ],
)
def test_a_field_that_needs_a_resume_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        updated_config(parse_config(BEGUN), changes)
    assert [violation.field for violation in caught.value.violations] == [field], caught.value.message


def test_an_active_run_is_told_which_changes_need_a_resume_and_which_a_new_run() -> None:
    with pytest.raises(InvalidArgument) as caught:
        updated_config(parse_config(BEGUN), {"model": {"path": "x"}, "grpo": {"group_size": 4}})
    resume, new = "change grpo.group_size, stop the run", "change model.path, start a new run"
    assert resume in caught.value.message and new in caught.value.message, caught.value
    assert {violation.field for violation in caught.value.violations} == {"model.path", "grpo.group_size"}


def test_a_new_model_alone_is_not_answered_with_a_resume() -> None:
    with pytest.raises(InvalidArgument) as caught:
        updated_config(parse_config(BEGUN), {"model": {"path": "x"}})
    message = caught.value.message
    assert "resume the run" not in message and "start a new run" in message, message


def test_a_coefficient_that_the_run_adapts_is_not_changed_while_it_is_active() -> None:
    with pytest.raises(InvalidArgument, match=r"kl\.target adapts the coefficient"):
        updated_config(parse_config(BEGUN | {"kl": {"coef": 0.01, "target": 0.1}}), {"kl": {"coef": 0.02}})


def test_a_mask_may_name_a_table_and_a_field_of_it() -> None:
    config = parse_config(BEGUN | {"loss": {"entropy_coef": 0.1}})
    assert updated_config(config, {}, ("loss", "loss.entropy_coef")).loss == parse_config(BEGUN).loss


@pytest.mark.parametrize("path", ["", "nosuch", "learner.learning_rat", "loss."])
def test_a_mask_that_names_no_field_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="update_mask"):
        updated_config(parse_config(BEGUN), {}, (path,))
