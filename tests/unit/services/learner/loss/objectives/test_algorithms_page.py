"""docs/algorithms.md against the configuration."""

import re
import tomllib
from typing import get_args

import pytest

from shoal.config import parse_config
from shoal.config.tables.kl import KlConfig
from shoal.config.tables.loss import Aggregation, Objective
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_excerpts_of_configurations_are_valid(text: str) -> None:
    base = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}}
    parse_config(base | tomllib.loads(text))


def test_the_page_names_every_value() -> None:
    fields = KlConfig.model_fields
    values = [*get_args(Objective), *get_args(Aggregation)]
    for name in ("estimator", "gradient"):
        values += get_args(fields[name].annotation)
    missing = [value for value in values if f"`{value}`" not in PAGE]
    assert not missing, f"docs/algorithms.md does not name {missing}"
