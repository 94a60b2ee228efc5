"""Tests of loading, checking and overriding a configuration."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.config import load_config, parse_config
from shoal.config.load import config_digest, config_struct, load_overrides
from shoal.errors import InvalidArgument

MINIMAL: dict[str, Any] = {"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[data.sources]]\npath = "d.jsonl"\n')
    return path


def violation(values: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        parse_config(MINIMAL | values)
    (first, *_) = caught.value.violations
    return first.field, first.description


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"group_size": 4}, "did you mean grpo.group_size?"),
        (
            {"learner": {"temperature": 1}},
            "sampling.temperature or reward.judge.temperature or evaluation.temperature?",
        ),
        ({"evaluaton": {}}, "did you mean 'evaluation'?"),
        ({"evaluation": {"stop": ["END"]}}, "did you mean 'stop_strings'?"),
        ({"learner": {"lr": 1e-6}}, "did you mean 'learning_rate'?"),
        ({"loss": {"clip": 0.2}}, "did you mean 'clip_high' or 'clip_low'?"),
        ({"generator": {"gpu_mem": 0.9}}, "did you mean 'gpu_memory_utilization'?"),
        ({"kl": {"beta": 0.1}}, "known: coef, "),
        ({"num_generations": 8}, "known: advantage, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_field_that_is_meant(values: dict[str, Any], hint: str) -> None:
    _, description = violation(values)
    assert description.startswith("unknown key; ") and hint in description, description


@pytest.mark.parametrize(
    ("section", "values", "field", "words"),
    [
        ("grpo", {"group_size": 1}, "grpo.group_size", "2"),
        ("sampling", {"temperature": 0.001}, "sampling.temperature", "0.01"),
        ("sampling", {"temperature": 2.5}, "sampling.temperature", "2"),
        ("grpo", {"groups_per_step": 5, "num_mini_batches": 2}, "grpo", "num_mini_batches (2)"),
        ("sampling", {"top_p": 0.9}, "sampling.top_p", "needs sampling.top_k above 0"),
        ("sampling", {"top_p": 0.9}, "sampling.top_p", "(given: 0.9)"),
        ("sampling", {"min_p": 0.1}, "sampling.min_p", "needs sampling.top_k above 0, for example 50, or must be 0"),
        ("sampling", {"top_k": 1}, "sampling.top_k", "must be 0 (all tokens) or at least 2"),
        ("sampling", {"top_k": 2000}, "sampling.top_k", "1024"),
        ("sampling", {"min_p": True}, "sampling", "min_p must be a number (given: true)"),
        ("grpo", {"group_size": True}, "grpo", "group_size must be a number (given: true)"),
        ("learner", {"zero_stage": 4}, "learner.zero_stage", "4"),
        ("run", {"name": "No Good"}, "run.name", "a-z"),
    ],
)
def test_an_invalid_value_is_refused_with_the_valid_ones(
    section: str, values: dict[str, Any], field: str, words: str
) -> None:
    found, description = violation({section: values})
    assert found == field and words in description, f"{found}: {description}"


def test_sampling_is_restricted_by_top_k_with_or_without_the_others() -> None:
    assert not parse_config(MINIMAL).sampling.is_restricted
    for values in ({"top_k": 2}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.05, "top_k": 1024}):
        assert parse_config(MINIMAL | {"sampling": values}).sampling.is_restricted, values


def test_a_config_is_unchanged_after_a_round_trip_as_a_struct() -> None:
    sources = [{"task": "arithmetic", "task_options": {"max_operand": 9, "more": [1, {"deep": 2}]}}]
    config = parse_config(MINIMAL | {"run": {"seed": 2**53 - 1}, "data": {"sources": sources}})
    assert config_digest(parse_config(config_struct(config))) == config_digest(config)


def test_the_whole_numbers_of_settings_arrive_as_they_were_written() -> None:
    settings = {"highest": 50, "limits": [1, {"share": 0.5, "tries": 3}]}
    environment = {"name": "doubling", "source": "/games.py:Game", "settings": settings}
    config = parse_config(MINIMAL | {"environments": [environment]})
    traveled = parse_config(config_struct(config))
    assert json.dumps(traveled.environments[0].settings, sort_keys=True) == json.dumps(settings)
    assert config_digest(traveled) == config_digest(config)


def test_null_and_absent_have_the_same_meaning() -> None:
    assert parse_config(MINIMAL | {"generator": {"max_model_len": None}}) == parse_config(MINIMAL)


def test_overrides_reach_into_tables_and_lists(file: Path) -> None:
    config = load_config(file, ["grpo.group_size=4", "data.sources.0.path=other file.jsonl", "run.name=x"])
    assert (config.grpo.group_size, config.data.sources[0].path, config.run.name) == (4, "other file.jsonl", "x")
    for wrong in ("grpo.group_size", "grpo.group_size.x=1", "data.sources.5.path=x"):
        with pytest.raises(InvalidArgument, match="--set"):
            load_config(file, ["grpo.group_size=4", wrong])


def test_overrides_may_name_the_items_of_a_list_that_the_file_does_not_have(file: Path) -> None:
    config = load_config(
        file, ["evaluation.sources.0.path=e.jsonl", "evaluation.sources.0.verifier=5", "evaluation.sources.1.task=x"]
    )
    assert [(one.path, one.task, one.verifier) for one in config.evaluation.sources] == [
        ("e.jsonl", None, "5"),
        (None, "x", None),
    ]
    with pytest.raises(InvalidArgument, match=r"evaluation\.sources: .*list"):
        load_config(file, ["evaluation.sources.1.path=e.jsonl"])


def test_the_file_of_an_environment_begins_at_the_current_folder_in_an_override_of_its_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_overrides(["environments.0.source=game.py:Game"]) == {
        "environments": {"0": {"source": f"{tmp_path}/game.py:Game"}}
    }


def test_a_missing_file_and_invalid_toml_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no configuration file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(InvalidArgument, match="TOML"):
        load_config(tmp_path / "bad.toml")


TEXTS = ("1234567", "2026-01-01", "true", "1e5", "[1]")


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("model.revision={}", TEXTS),
        ("data.sources.0.messages_column={}", TEXTS),
        ("data.sources.0.verifier={}", TEXTS[:3]),  # One text or several.
        ("reward.remap.sums={}", TEXTS[:3]),
        ("data.sources.0.label_columns.x={}", TEXTS[:3]),
        ("sampling.stop_strings={}", (["a"],)),
        ("data.sources.0.path={}", (["d.jsonl", "e.jsonl"],)),
        ("model.chat_template_kwargs.enable_thinking={}", (False,)),  # A free table keeps the type of its value.
    ],
)
def test_an_override_has_the_type_of_its_field(file: Path, override: str, values: Sequence[object]) -> None:
    *path, name = override.removesuffix("={}").split(".")
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value)
        table: Any = load_config(file, [override.format(text)]).model_dump()
        for key in path:
            table = table[int(key)] if isinstance(table, list) else table[key]
        assert table[name] == value and type(table[name]) is type(value), text


def test_an_override_with_a_boolean_of_python_is_a_boolean_where_the_field_does_not_take_text(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[data.sources]]\ntask = "arithmetic"\n')
    config = load_config(
        path, ["model.chat_template_kwargs.enable_thinking=False", "data.sources.0.task_options.x=True"]
    )
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    assert config.data.sources[0].task_options == {"x": True}
    assert load_config(path, ["model.revision=False"]).model.revision == "False"


@pytest.mark.parametrize(
    ("line", "field", "cure"),
    [
        ("revision = 1234567", "model.revision", '"1234567"'),
        ("revision = 2026-01-01", "model.revision", '"2026-01-01"'),
        ('[sampling]\nstop_strings = "END"', "sampling.stop_strings", '["END"]'),
        ("[sampling]\nstop_strings = 2026-01-01", "sampling.stop_strings", '["2026-01-01"]'),
        ("[sampling]\nstop_strings = [1]", "sampling.stop_strings.0", '"1"'),
        ('[evaluation]\nstop_strings = "END"', "evaluation.stop_strings", '["END"]'),
        ('[learner.lora]\ntarget_modules = "[q_proj, v_proj]"', "learner.lora.target_modules", '["q_proj", "v_proj"]'),
    ],
)
def test_a_value_that_is_no_text_is_refused_with_the_text_that_it_may_be(
    tmp_path: Path, line: str, field: str, cure: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "m"\n{line}\n[[data.sources]]\npath = "d.jsonl"\n')
    with pytest.raises(InvalidArgument) as refused:
        load_config(path)
    (violation,) = refused.value.violations
    assert violation.field == field
    assert cure in violation.description and "datetime" not in violation.description


@pytest.mark.parametrize(
    "wrong", ["data.sources.².path=x", "data.sources.0.task_options.sizes.0.deep=1", "model.path.0=x"]
)
def test_an_override_of_a_field_that_does_not_exist_is_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[data.sources]]\ntask = "arithmetic"\ntask_options = {sizes = [1]}\n')
    with pytest.raises(InvalidArgument, match="--set"):
        load_config(path, [wrong])


def test_numbers_that_json_cannot_represent_are_refused_at_any_depth() -> None:
    options = {"data": {"sources": [{"task": "arithmetic", "task_options": {"sizes": [1.0, float("inf")]}}]}}
    field, description = violation(options)
    assert field == "data.sources.0.task_options.sizes.1" and "finite" in description, f"{field}: {description}"
    struct = config_struct(parse_config(MINIMAL))
    struct["sampling"]["temperature"] = float("nan")
    with pytest.raises(InvalidArgument, match="NaN"):
        parse_config(struct)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"reward": {"num_processes": 1, "max_queued": 1}}, "reward.num_processes + reward.max_queued (2)"),
        ({"generator": {"max_num_seqs": 2, "max_queued_requests": 5}}, "generator.max_queued_requests (7)"),
    ],
)
def test_a_queue_that_is_too_small_for_a_group_is_refused(values: dict[str, Any], words: str) -> None:
    _, description = violation(values)
    assert words in description and "grpo.group_size (8)" in description, description
    parse_config(MINIMAL | values | {"grpo": {"group_size": 2}})


def test_numbers_and_depths_that_no_table_has_are_refused_and_not_a_defect(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text in ("a = " + "9" * 5000, "a = " + "[" * 5000, "[" + ".".join("a" * 300) + "]\nb = 1"):
        path.write_text(text)
        with pytest.raises(InvalidArgument, match=r"as TOML|deeper"):
            load_config(path)
    path.write_text("")
    for override in ("a.b=" + "9" * 5000, ".".join("a" * 1500) + "=1", "model.chat_template=a\\u0000b"):
        with pytest.raises(InvalidArgument):
            load_config(path, [override])
    with pytest.raises(InvalidArgument, match=r"data\.task_options\.digits: "):
        parse_config({"data": {"task_options": {"digits": 10**400}}})
