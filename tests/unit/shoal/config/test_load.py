from pathlib import Path
from typing import Any

import pytest

from shoal.config import load_config, parse_config
from shoal.config.load import config_digest, config_struct
from shoal.errors import InvalidArgument

MINIMAL: dict[str, Any] = {"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}}


def violation(values: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        parse_config(MINIMAL | values)
    (first, *_) = caught.value.violations
    return first.field, first.description


def test_an_unknown_key_is_named_with_the_one_that_was_meant() -> None:
    field, description = violation({"grpo": {"groupsize": 4}})
    assert field == "grpo.groupsize" and "'group_size'" in description, description


@pytest.mark.parametrize(
    ("section", "values", "field", "words"),
    [
        ("grpo", {"group_size": 0}, "grpo.group_size", "1"),
        ("grpo", {"groups_per_step": 5, "num_mini_batches": 2}, "grpo", "num_mini_batches (2)"),
        ("sampling", {"top_p": 0.9}, "sampling.top_p", "0.9"),
        ("learner", {"zero_stage": 4}, "learner.zero_stage", "4"),
        ("run", {"name": "No Good"}, "run.name", "a-z"),
    ],
)
def test_a_bad_value_is_named_with_what_would_be_right(
    section: str, values: dict[str, Any], field: str, words: str
) -> None:
    found, description = violation({section: values})
    assert found == field and words in description, f"{found}: {description}"


def test_a_config_that_traveled_as_a_struct_is_the_same() -> None:
    config = parse_config(MINIMAL | {"run": {"seed": 2**53 - 1}})
    assert config_digest(parse_config(config_struct(config))) == config_digest(config)


def test_null_and_absent_mean_the_same() -> None:
    assert parse_config(MINIMAL | {"generator": {"max_model_len": None}}) == parse_config(MINIMAL)


def test_overrides_reach_into_tables_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[data.sources]]\npath = "d.jsonl"\n')
    config = load_config(path, ["grpo.group_size=4", "data.sources.0.path=other file.jsonl", "run.name=x"])
    assert (config.grpo.group_size, config.data.sources[0].path, config.run.name) == (4, "other file.jsonl", "x")
    for wrong in ("grpo.group_size", "grpo.group_size.x=1", "data.sources.5.path=x"):
        with pytest.raises(InvalidArgument, match="--set"):
            load_config(path, ["grpo.group_size=4", wrong])


def test_a_missing_file_and_bad_toml_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no configuration file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(InvalidArgument, match="TOML"):
        load_config(tmp_path / "bad.toml")
