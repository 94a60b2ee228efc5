"""A configuration is never edited in place: a change makes a new one, which `LiveConfig` holds."""

import ast

from tests.architecture.test_limits import modules

HOLDERS = ("shoal/config/", "services/coordinator/", "services/generator/", "services/learner/")
"""Where configurations are. Verifiers' sandbox and environments set attributes of objects that are not theirs."""


def test_nothing_writes_past_the_lock_of_a_frozen_configuration() -> None:
    ways = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        if path.startswith(HOLDERS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__setattr__")
    ]
    assert not ways, f"make a new configuration with model_copy: {ways}"
