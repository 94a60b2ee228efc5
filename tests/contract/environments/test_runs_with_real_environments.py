"""Runs of three steps against environments of other projects: an MCP server, an OpenEnv server, a task set of
verifiers. Coordinator and reward service are real; the policy says what a script says, and the learner counts.

With real engines: tests/acceptance/test_real_environments.py.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.reward.service import RewardService
from shoal.translate import translate_arguments
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire import completion_from_wire
from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.local_stack import free_port
from tests.support.open_instruct_scripts import flags_of
from tests.support.real_environments import TASKSET_SETTINGS, openenv_echo, python_with_taskset, serving
from tests.support.repository import ROOT
from tests.support.reward_client import ALLOWED
from tests.support.scripted_environment import ScriptedPolicy

DR_TULU_SERVER = ROOT / "tests/support/dr_tulu_server.py"
MCP_SERVER = ROOT / "tests/unit/services/reward/environments/builtin/mcp_server.py"
NUM_STEPS = 3


async def trained(
    cluster: Cluster,
    model: Path,
    says: Callable[[str, int], str],
    environment: dict[str, Any],
    row: dict[str, Any],
    **episodes: Any,
) -> list[pb.Rollout]:
    """Plays a run to its end; returns its rollouts, all of which were trained on."""
    interpreters = (environment.get("interpreter", ""),)
    allowed = replace(ALLOWED, verifier_packages=("verifiers",), interpreters=interpreters)
    policy, reward = ScriptedPolicy(cluster.plane, says), RewardService(allowed)
    await cluster.add_all(policy, rewards=(reward,))
    rows = model.parent / f"{environment['name']}.jsonl"
    rows.write_text("".join(json.dumps({"messages": f"Row {number}."} | row) + "\n" for number in range(16)))
    config = episode_config(
        model,
        data={"sources": [{"path": str(rows), "environment": environment["name"]}]},
        run={"num_steps": NUM_STEPS},
        grpo={"group_size": 6},
        sampling={"max_completion_tokens": 1600},
        reward={"num_processes": 1},
        episodes={"tool_parser": "hermes", "tools_in_prompt": False, "max_turns": 2, "call_timeout_s": 120.0}
        | episodes,
    )
    try:
        await cluster.start(config | {"environments": [environment]})
        run, events = await cluster.end()
    finally:
        await reward.close()
    assert run.state == pb.RUN_STATE_FINISHED, (run.message, kinds(events))
    sent = [m.rollout.completion for batch in cluster.learner.batches for m in batch if m.HasField("rollout")]
    assert sent
    for completion in sent:
        completion_from_wire(completion)  # As a learner reads it.
    groups = [group for group in await cluster.groups() if group.state == "TRAINED"]
    assert {group.train_step for group in groups} == set(range(1, NUM_STEPS + 1))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    outcomes = {rollout_pb2.ScoreOutcome.Name(rollout.episode.outcome) for rollout in rollouts}
    assert outcomes == {"SCORE_OUTCOME_SCORED"}, [rollout.episode.detail for rollout in rollouts]
    return rollouts


def documents(result: str, tag: str, count: int) -> list[str]:
    """Returns the documents of a result in DR Tulu's form, whose ids count from 0."""
    found = re.findall(rf"<{tag} id=([0-9a-f]{{8}})-(\d+)>\n(.*?)\n</{tag}>", result, re.DOTALL)
    whole = "\n".join(f"<{tag} id={id_}-{place}>\n{text}\n</{tag}>" for id_, place, text in found)
    assert result == f"<tool_output>{whole}</tool_output>"
    assert {(found[0][0], str(place)) for place in range(count)} == {(id_, place) for id_, place, _ in found}
    return [text for _, _, text in found]


async def test_a_policy_is_trained_with_the_tools_of_an_mcp_server_and_paid_by_a_verifier(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    def says(text: str, seed: int) -> str:
        if "tool_call" not in text:
            return '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
        return f"It is {42 + seed % 2}."

    port = free_port()
    url, command = f"http://127.0.0.1:{port}/mcp", [sys.executable, str(MCP_SERVER), str(port)]
    environment = {"name": "sums", "source": "mcp", "settings": {"url": url, "tools": ["add"]}}
    label = {"dataset": "gsm8k", "ground_truth": "42"}
    with serving(command, url, tmp_path / "log", tmp_path, dict(os.environ)):
        rollouts = await trained(cluster, model, says, environment, label)
    for rollout in rollouts:
        first, last = rollout.episode.turns
        assert [message.content for message in first.observations] == ["42"] and first.tool_outcomes[0].ok
        assert rollout.score.reward == float(last.message.content == "It is 42.")


async def test_a_policy_is_trained_with_the_tools_of_a_translated_script_of_open_instruct(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    said = [
        '<think>I look.</think> <call_tool name="snippet_search" limit="3" year="2021-2025">GRPO</call_tool>',
        '<think>More. <call_tool name="google_search">GRPO</call_tool>',
        '<call_tool name="browse_webpage">https://example.com/a</call>',
        '<call_tool name="massive_serve">GRPO</call_tool>',
    ]

    def says(text: str, seed: int) -> str:
        num_calls = text.count("</call")
        return said[num_calls] if num_calls < len(said) else f"It is {42 + seed % 2}."

    port = free_port()
    flags = [flag.replace("8000", str(port)) for flag in flags_of("debug/tools/dr_tulu_parser_debug.sh")]
    values = translate_arguments("open-instruct", flags, skip=["all"]).values
    (environment,) = values["environments"]
    command = [sys.executable, str(DR_TULU_SERVER), str(port)]
    label = {"dataset": "gsm8k", "ground_truth": "42"}
    with serving(command, environment["settings"]["url"], tmp_path / "log", tmp_path, dict(os.environ)):
        rollouts = await trained(cluster, model, says, environment, label, **values["episodes"])
    for rollout in rollouts:
        papers, pages, page, unknown = (turn.observations[0].content for turn in rollout.episode.turns[:-1])
        asked = {"query": "GRPO", "year": None, "paper_ids": None, "venue": None, "limit": 3}
        assert documents(papers, "snippet", 3) == [f"Title: A paper\nSnippet: {json.dumps(asked)}"] * 3
        asked = {"query": "GRPO", "num_results": 10, "gl": "us", "hl": "en"}
        found = f"Title: A page\nURL: https://example.com/a\nSnippet: {json.dumps(asked)}"
        assert documents(pages, "snippet", 1) == [found]
        read = {"url": "https://example.com/a", "base_url": None, "use_ai2_config": True, "timeout_ms": 179_000}
        written = f"Title: No title available\nURL: https://example.com/a\nSnippet: {json.dumps(read)}"
        assert documents(page, "webpage", 1) == [written]
        assert unknown.startswith("<tool_output>error: ") and unknown.endswith("</tool_output>"), unknown
        named = ("'massive_serve'", "browse_webpage", "google_search", "snippet_search")
        assert all(name in unknown for name in named), unknown
        assert rollout.score.reward == float(rollout.episode.turns[-1].message.content == "It is 42.")


async def test_a_policy_is_trained_against_an_unmodified_openenv_server(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    with openenv_echo(tmp_path) as address:
        settings = {"base_url": address, "action": "message", "observation": "echoed_message"}
        # The server has a place for one session.
        environment = {"name": "echo", "source": "openenv", "max_episodes": 1, "settings": settings}
        rollouts = await trained(cluster, model, lambda text, seed: "x" * (1 + seed % 7), environment, {})
    for rollout in rollouts:
        assert [message.content for message in rollout.episode.first_messages] == ["Echo environment ready!"]
        lengths = [len(turn.message.content) for turn in rollout.episode.turns]
        assert rollout.score.reward == sum(turn.reward for turn in rollout.episode.turns)
        assert abs(rollout.score.reward - sum(lengths) / 10) < 1e-6


async def test_a_policy_is_trained_on_an_unmodified_task_set_of_verifiers(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    python = python_with_taskset(tmp_path)
    environment = {"name": "sums", "source": "verifiers", "interpreter": python, "settings": TASKSET_SETTINGS}

    def says(text: str, seed: int) -> str:
        return "Let me see." if "Say a number" not in text else f"{seed % 10}"

    for rollout in await trained(cluster, model, says, environment, {}):
        first, last = rollout.episode.turns
        assert first.message.content == "Let me see." and last.message.content.isdigit()
        metrics = dict(rollout.episode.metrics)
        assert metrics["num_turns"] == 2
        assert abs(rollout.score.reward - (metrics["right"] + 0.5 * metrics["digits"])) < 1e-6
