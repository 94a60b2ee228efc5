"""What is said about verifiers in several places is the same everywhere."""

import inspect

import pytest

from services.reward.registry import ALL_VERIFIERS
from shoal.config.verifiers import VerifiersConfig
from shoal.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS

OPTIONS = VerifiersConfig().model_dump()


def test_names_for_those_who_check_data_are_those_of_the_registry() -> None:
    assert set(ALL_VERIFIERS) == BUILT_IN_VERIFIERS - JUDGE_VERIFIERS - MODEL_VERIFIERS


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_options_of_the_configuration_are_those_of_the_verifier_with_the_same_defaults(name: str) -> None:
    verifier = ALL_VERIFIERS[name]
    parameters = inspect.signature(verifier.verify).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != verifier.reads}
    settable = {key: tuple(value) if isinstance(value, list) else value for key, value in OPTIONS.get(name, {}).items()}
    assert settable == keywords, f"{name}: configuration {settable}, verifier {keywords}"


@pytest.mark.parametrize("name", sorted(ALL_VERIFIERS))
def test_a_verifier_says_what_it_reads_and_what_it_returns(name: str) -> None:
    description = ALL_VERIFIERS[name].description
    assert "label" in description.lower(), description
    assert "value" in description.lower(), description
