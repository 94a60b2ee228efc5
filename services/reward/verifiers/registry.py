"""The verifiers by name. Every other module of this package declares the verifier of its name."""

import importlib
import pkgutil

from services.reward import verifiers
from services.reward.common.verifier import Verifier


def _declared() -> dict[str, Verifier]:
    names = sorted(module.name for module in pkgutil.iter_modules(verifiers.__path__))
    modules = {name: importlib.import_module(f"{verifiers.__name__}.{name}") for name in names if name != "registry"}
    return {name: module.VERIFIER for name, module in modules.items()}


ALL_VERIFIERS = _declared()

VERIFIERS = {name: verifier for name, verifier in ALL_VERIFIERS.items() if not verifier.missing_package}
"""The verifiers whose packages are installed."""
