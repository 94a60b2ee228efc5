from pathlib import Path

import pytest

from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model, which no test changes."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
