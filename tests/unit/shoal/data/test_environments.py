"""Environments and tasks of rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoal.config import parse_config
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data import PromptSet
from shoal.data.conversation import conversation_of
from shoal.data.environments import environment_of
from shoal.data.prompt_set import held_out_prompts
from shoal.data.rows import Row
from shoal.data.tasks import make_task
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask
from shoal.v1 import environment_pb2
from shoal.wire.prompts import environment_to_wire
from tests.unit.shoal.data.test_load import load

NAMED = SourceConfig(path="d", environment_column="env", environment_task_column="task")


def read(values: Mapping[str, Any], source: SourceConfig = NAMED) -> EnvironmentTask | None:
    return environment_of(Row(0, "d.jsonl:1", values), source, ["counter", "wordle"])


def nested(num_levels: int) -> dict[str, Any]:
    task: dict[str, Any] = {}
    for _ in range(num_levels - 1):
        task = {"a": task}
    return task


def test_the_deepest_task_that_is_accepted_reaches_the_environment() -> None:
    task = read({"env": "counter", "task": nested(24)})
    assert task is not None
    start = environment_pb2.EpisodeStart(task=environment_to_wire(task).task)
    sent = environment_pb2.RunEpisodeRequest(start=start).SerializeToString()
    assert environment_pb2.RunEpisodeRequest.FromString(sent).start == start


def test_a_task_is_a_table_or_one_as_json_text_or_empty() -> None:
    wanted = EnvironmentTask("counter", {"target": 5, "names": ["a"]})
    assert read({"env": "counter", "task": wanted.task}) == wanted
    assert read({"env": "counter", "task": json.dumps(wanted.task)}) == wanted
    assert read({"env": "counter"}) == EnvironmentTask("counter", {})


def test_a_name_may_have_any_case() -> None:
    assert read({"env": "Counter"}) == EnvironmentTask("counter", {})
    assert read({}, SourceConfig(path="d", environment="WORDLE")) == EnvironmentTask("wordle", {})


def test_a_row_without_a_name_is_a_prompt_of_one_turn() -> None:
    assert read({"env": None}) is None and read({"env": ""}) is None and read({}) is None
    assert read({"env": "counter"}, SourceConfig(path="d")) is None, "the column is not read unless it is named"
    assert read({}, SourceConfig(path="d", environment="wordle")) == EnvironmentTask("wordle", {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "chess"}, r"d.jsonl:1: no environment is called 'chess'.*known: counter, wordle"),
        ({"env": 3}, "env must be the name of an environment"),
        ({"env": {"env_name": "chess"}}, "no environment is called 'chess'"),
        ({"env": [{"env_name": "counter"}, {"env_name": "wordle"}]}, r"names several environments \(counter, wordle\)"),
        ({"env": {"env_name": "counter", "target": float("inf")}}, "env holds inf"),
        ({"env": "counter", "task": "{"}, "d.jsonl:1: task is not JSON"),
        ({"env": "counter", "task": [1]}, "task must be a table"),
        ({"env": "counter", "task": '{"a": ["\\ud800"]}'}, "task is not valid Unicode"),
        ({"env": "counter", "task": {"\ud800": 1}}, "task is not valid Unicode"),
        ({"env": {"env_name": "counter", "word": "\ud800"}}, "env is not valid Unicode"),
        ({"env": "counter", "tools": ["\ud800"]}, "tools is not valid Unicode"),
        ({"env": "counter", "task": nested(25)}, "task is nested deeper than 24 levels"),
        ({"env": "counter", "task": {"a": {"b": [float("nan")]}}}, "task holds nan"),
        ({"env": "counter", "task": {"a": 2**60}}, "task holds 1152921504606846976"),
        ({"env": "counter", "tools": "add"}, r"d.jsonl:1: tools must be a list of names of tools.*found: 'add'"),
        ({"env": "counter", "tools": [{"name": "a"}]}, "tools must be a list.*found: .*'name': 'a'.*tools_column"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read(values)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, None),
        ({"tools": None}, None),
        ({"tools": []}, ()),
        ({"tools": ["add", "submit", "add"]}, ("add", "submit")),
    ],
)
def test_a_row_offers_the_tools_that_it_names_or_all(values: dict[str, Any], wanted: tuple[str, ...] | None) -> None:
    assert read({"env": "counter"} | values) == EnvironmentTask("counter", {}, wanted)
    assert read({"env": {"env_name": "counter"}} | values) == EnvironmentTask("counter", {}, wanted)
    named = SourceConfig(path="d", environment="counter", tools_column="active")
    assert read({"active": values.get("tools")}, named) == EnvironmentTask("counter", {}, wanted)
    other = SourceConfig(path="d", environment="counter", tools_column="")
    assert read({"tools": "another purpose"}, other) == EnvironmentTask("counter", {}), "an empty text reads no column"
    blank = SourceConfig(path="d", environment="counter", environment_task_column="", tools_column="")
    assert read({"": {"target": 5}, "environment_task": {"target": 5}}, blank) == EnvironmentTask("counter", {})


@pytest.mark.parametrize(
    "form",
    [
        {"env_name": "counter", "is_text_env": None, "target": "5", "word": None, "max_steps": 7},
        [{"env_name": "counter", "target": 5}],
        {"max_steps": 7, "env_configs": [{"env_name": "counter", "is_text_env": False, "target": 5}]},
    ],
)
def test_the_forms_of_open_instructs_env_config_are_read(form: Any) -> None:
    assert read({"env": form, "task": {"target": 1}}) == EnvironmentTask("counter", {"target": 5})


def test_an_env_config_without_an_environment_is_a_prompt_of_one_turn() -> None:
    assert read({"env": {"env_configs": []}}) is None and read({"env": []}) is None and read({"env": {"a": 1}}) is None


@pytest.mark.parametrize("verifier", [None, "passthrough"])
def test_a_row_with_an_environment_needs_no_verifier(verifier: str | None) -> None:
    row = Row(0, "d.jsonl:1", {"messages": "Play.", "env": "counter"})
    source = NAMED.model_copy(update={"verifier": verifier})
    conversation = conversation_of(row, source, ["math"], RewardConfig(), ["counter"])
    assert conversation.ground_truths == () and conversation.environment is not None


def test_a_row_with_an_environment_may_have_one() -> None:
    row = Row(0, "d.jsonl:1", {"messages": "2 + 2", "env": "counter", "dataset": "math", "ground_truth": "4"})
    (truth,) = conversation_of(row, NAMED, ["math"], RewardConfig(), ["counter"]).ground_truths
    assert (truth.verifier, truth.label) == ("math", "4")


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def loaded(path: Path, **columns: str) -> PromptSet:
    named = {"environment_column": "env", "environment_task_column": "task", **columns}
    return load({"path": str(path), **named}, known_environments=["counter"])


def test_columns_of_parquet_that_are_not_there_are_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    columns = {"messages": ["Play."], "env": ["counter"], "task": ['{"a": 1}']}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    (prompt,) = loaded(path).prompts
    assert prompt.environment == EnvironmentTask("counter", {"a": 1}) and prompt.ground_truths == ()
    pyarrow.parquet.write_table(pyarrow.table(columns | {"tools": [["add"]]}), path)
    (prompt,) = loaded(path).prompts
    assert prompt.environment == EnvironmentTask("counter", {"a": 1}, ("add",))


def test_the_policys_turn_does_not_begin_in_the_prompt_of_an_episode(tmp_path: Path) -> None:
    play = {"messages": "Play.", "env": "counter", "task": {}}
    asked = {"messages": "2 + 2", "dataset": "math", "ground_truth": "4", "env": ""}
    episode, single = loaded(written(tmp_path / "d.jsonl", play, asked)).prompts
    assert episode.text == "<|im_start|>user\nPlay.<|im_end|>\n"
    assert single.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_products_are_questions_and_tasks_for_the_calculator() -> None:
    source = SourceConfig(task="multiplication", task_size=50, environment="calculator")
    rows = make_task(source).rows
    tasks = [row.values["environment_task"] for row in rows]
    assert len({(task["a"], task["b"]) for task in tasks}) == 50
    for row, task in zip(rows, tasks, strict=True):
        assert row.values["messages"][-1]["content"] == f"What is {task['a']} times {task['b']}?"
        assert row.values["ground_truth"] == str(task["a"] * task["b"])
    with pytest.raises(InvalidArgument, match="8100 different questions"):
        make_task(source.model_copy(update={"task_size": 9000}))


def test_games_of_guessing_hide_different_numbers() -> None:
    source = SourceConfig(task="guessing", task_size=200, environment="guess_number")
    rows = make_task(source).rows
    hidden = [row.values["environment_task"]["number"] for row in rows]
    assert set(hidden) == set(range(1, 6))
    assert hidden == [row.values["environment_task"]["number"] for row in make_task(source).rows]
    with pytest.raises(InvalidArgument, match="guessing has no options"):
        make_task(source.model_copy(update={"task_options": {"highest": 5}}))


SOURCE = {"path": "d", "environment": "counter"}
VALUES: dict[str, Any] = {"environments": [{"name": "counter"}], "model": {"path": "m"}, "data": {"sources": [SOURCE]}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {
                "run": {"deterministic": True, "num_threads": 1},
                "grpo": {"max_staleness": 0, "group_size": 7, "groups_per_step": 8},
                "environments": [{"name": "counter", "max_episodes": 63}],
            },
            "run.deterministic needs environments.max_episodes of at least 64",
        ),
        ({"episodes": {"max_turn_tokens": 4000}}, r"max_turn_tokens \(4000\) must be at most"),
        ({"episodes": {"call_timeout_s": 60, "timeout_s": 30}}, "call_timeout_s"),
        ({"episodes": {"turn_rewards": "tokens"}, "advantage": {"baseline": "second_best"}}, "turn_rewards"),
    ],
)
def test_settings_that_do_not_go_together_with_episodes_are_refused(sections: dict[str, Any], message: str) -> None:
    engines = {"generator": {"dtype": "float32"}, "learner": {"compute_dtype": "float32"}}
    with pytest.raises(InvalidArgument, match=message):
        parse_config(VALUES | engines | sections)
    parse_config(VALUES | engines)


def test_held_out_games_are_questions_of_their_own_unless_training_has_their_words_and_task(tmp_path: Path) -> None:
    def prompts(name: str, *tasks: dict[str, int]) -> PromptSet:
        rows = ({"messages": "Play.", "env": "counter", "task": task} for task in tasks)
        return loaded(written(tmp_path / name, *rows))

    trained, candidates = prompts("a.jsonl", {"n": 1}), prompts("b.jsonl", {"n": 1}, {"n": 2}, {"n": 2})
    chosen = held_out_prompts(candidates, trained.questions, 10)
    assert [one.prompt_id.rpartition("/")[2] for one in chosen.prompts] == ["b.jsonl:1", "b.jsonl:2"], (
        "what they draw differs"
    )


def test_one_environment_is_named_for_a_source() -> None:
    with pytest.raises(ValueError, match="environment or environment_column"):
        SourceConfig(path="d", environment="counter", environment_column="env")


@pytest.mark.parametrize("field", ["environment_column", "environment_task_column", "tools_column"])
def test_a_column_that_no_row_has_is_refused_with_those_that_are_there(tmp_path: Path, field: str) -> None:
    play = {"messages": "Play.", "env": "counter", "task": {}}
    path = written(tmp_path / "d.jsonl", play)
    with pytest.raises(InvalidArgument, match=rf"'tusk', .*{field} .*: env, mess"):
        loaded(path, **{field: "tusk"})
    written(path, play, {"messages": "Go."})
    with pytest.raises(InvalidArgument, match="'dataset'"):
        loaded(path)
