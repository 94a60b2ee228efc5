"""What of the optional packages is installed, and what stands for the rest."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest


def skip_without(package: str) -> None:
    """Skips the tests of a module without a package. `pytest.importorskip` would import it, which may take seconds."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def stand_in(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, Any]]) -> None:
    """Puts modules with these attributes in place of those of a package that is not installed."""
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
