"""What of the optional packages is installed."""

import importlib.util

import pytest


def skip_without(package: str) -> None:
    """Skips the tests of a module without a package. `pytest.importorskip` would import it, which may take seconds."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
