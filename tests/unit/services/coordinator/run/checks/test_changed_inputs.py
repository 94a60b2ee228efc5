"""A run that goes on notices what it was made from: data, held-out questions, base model."""

import pytest

from services.coordinator.run.checks.changed_inputs import changed_inputs
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from tests.support.configs import run_config

BEFORE = {
    "data.sources": {"a.jsonl": "a" * 64},
    "evaluation.sources": {"ev.jsonl": "e" * 64},
    "model.path": {"config.json": "c" * 64, "model.safetensors": "sampled-" + "d" * 64},
}


def config(changed_data: str = "refuse") -> RunConfig:
    return run_config(run={"changed_data": changed_data})


def changed(field: str, **digests: str | None) -> dict[str, dict[str, str]]:
    names = {name.replace("_", "."): digest for name, digest in digests.items()}
    kept = {name: digest for name, digest in (BEFORE[field] | names).items() if digest is not None}
    return {**BEFORE, field: kept}


def refusal(now: dict[str, dict[str, str]], changed_data: str = "refuse") -> str:
    with pytest.raises(FailedPrecondition) as error:
        changed_inputs(config(changed_data), BEFORE, now)
    assert error.value.reason == ErrorReason.INPUTS_CHANGED
    return error.value.message


def test_nothing_is_said_of_what_is_the_same_or_was_not_known() -> None:
    assert changed_inputs(config(), BEFORE, BEFORE) == []
    assert changed_inputs(config(), {}, BEFORE) == []


def test_changed_data_are_refused_by_name_unless_they_are_accepted() -> None:
    now = changed("data.sources", a_jsonl="b" * 64)
    message = refusal(now)
    assert "data.sources: a.jsonl" in message and "a" * 12 in message and "b" * 12 in message, message
    assert "run.changed_data=accept" in message
    assert [one.partition(" has ")[0] for one in changed_inputs(config("accept"), BEFORE, now)] == [
        "data.sources: a.jsonl"
    ]


@pytest.mark.parametrize(
    ("name", "digest"), [("config_json", "b" * 64), ("model_safetensors", None), ("tokenizer_json", "t" * 64)]
)
def test_another_base_model_is_refused_in_any_case(name: str, digest: str | None) -> None:
    message = refusal(changed("model.path", **{name: digest}), "accept")
    assert f"model.path: {name.replace('_', '.')}" in message and "changed_data" not in message, message


def test_sources_that_the_configuration_changed_are_none() -> None:
    now = {**BEFORE, "evaluation.sources": {"other.jsonl": "f" * 64}}
    assert changed_inputs(config(), BEFORE, now) == []
