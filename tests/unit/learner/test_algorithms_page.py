"""docs/algorithms.md says what the code takes."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from shoal.config import parse_config
from shoal.config.loss import Aggregation, KlConfig, Objective

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_lines_of_configuration_are_taken(text: str) -> None:
    base = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}}
    parse_config(base | tomllib.loads(text))


def test_every_value_has_its_place_on_the_page() -> None:
    fields = KlConfig.model_fields
    values = [*get_args(Objective), *get_args(Aggregation)]
    for name in ("estimator", "gradient"):
        values += get_args(fields[name].annotation)
    missing = [value for value in values if f"`{value}`" not in PAGE]
    assert not missing, f"docs/algorithms.md does not name {missing}"
