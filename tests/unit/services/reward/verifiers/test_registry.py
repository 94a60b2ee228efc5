"""Tests of the verifier registry against the configuration."""

import pytest

from services.reward.verifiers.registry import ALL_VERIFIERS
from shoal.config.tables.verifiers import RULE_VERIFIERS, VerifiersConfig

OPTIONS = VerifiersConfig().model_dump()


def test_the_configuration_knows_every_verifier_of_the_registry() -> None:
    assert ALL_VERIFIERS.keys() == RULE_VERIFIERS


@pytest.mark.parametrize("name", sorted(ALL_VERIFIERS))
def test_the_configuration_has_the_options_and_defaults_of_the_verifier(name: str) -> None:
    options = ALL_VERIFIERS[name].options
    assert OPTIONS.get(name, {}) == (options().model_dump() if options else {})


def test_the_package_of_a_verifier_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: verifier.missing_package for name, verifier in ALL_VERIFIERS.items()}
    # A search reads folders, which must not happen for every label; and what the registry left out must stay left out.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: pytest.fail(f"looked for {name} again"))
    assert {name: verifier.missing_package for name, verifier in ALL_VERIFIERS.items()} == before
