"""What a run finds out about its environments before it samples anything."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.episodes.stream import EnvironmentInfo
from services.coordinator.run.checks.environment_check import check_tools_of_rows, prepare_environments, unwritten_tools
from services.coordinator.run.checks.preflight import PreparedInputs
from shoal.chat_templates import template_text
from shoal.config import RunConfig, parse_config
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.data import HeldOut, PromptSet
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask, Prompt
from tests.support import chat_templates as families
from tests.support.wordings import has_all

TOOLS = tuple(ToolDefinition(name, "", {"type": "object", "properties": {}}) for name in ("search", "browse"))
VALUES: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"sources": [{"path": "d", "environment": "research"}]},
    "environments": [{"name": "research", "server": "127.0.0.1:1"}],
}
CONFIG = parse_config(VALUES)
INLINE = {"tool_parser": "tag", "inline_results": "<output>{result}</output>"}


def row(number: int, tools: tuple[str, ...] | None) -> Prompt:
    token_ids, messages = np.array([1, 2], np.int32), (ChatMessage("user", "Which is the tallest?"),)
    return Prompt(f"d.jsonl:{number}", token_ids, "", (), messages, EnvironmentTask("research", {}, tools))


async def prepare(
    template: str,
    *prompts: Prompt,
    config: RunConfig = CONFIG,
    questions: tuple[Prompt, ...] = (),
    tools: tuple[ToolDefinition, ...] = TOOLS,
) -> list[str]:
    """Returns the texts of the prompts as a run samples behind them."""
    tokenizer = families.tokenizer_with(template)

    async def listed() -> dict[str, EnvironmentInfo]:
        return {"research": EnvironmentInfo("research", tools, True, "")}

    events: Any = SimpleNamespace(add=lambda *_, **__: None)
    stages = Stages(config, tokenizer)
    parts: Any = SimpleNamespace(environments=SimpleNamespace(list=listed), stages=stages, events=events)
    try:
        inputs = PreparedInputs(tokenizer, PromptSet(list(prompts), [""] * len(prompts)), HeldOut(questions), ())
        prepared, _ = await prepare_environments(config, inputs, parts)
    finally:
        stages.close()
    return [prompt.text for prompt in prepared.prompts.prompts]


async def test_a_prompt_shows_the_tools_that_its_row_offers() -> None:
    texts = await prepare(families.QWEN, row(0, None), row(1, ("browse",)), row(2, ()))
    shown = [[tool.name for tool in TOOLS if f'"name": "{tool.name}"' in text] for text in texts]
    assert shown[:2] == [["search", "browse"], ["browse"]]
    assert texts[2] == "", "a prompt without tools is as it was"


WRITES_NO_TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "tools", "episodes", "is_unwritten"),
    [
        (families.QWEN, None, {}, False),
        (WRITES_NO_TOOLS, None, {}, True),
        (WRITES_NO_TOOLS, ("browse",), {}, True),
        (WRITES_NO_TOOLS, (), {}, False),
        (WRITES_NO_TOOLS, None, {"tools_in_prompt": False}, False),
        (template_text("r1_zero"), None, INLINE, True),
    ],
)
def test_tools_that_the_chat_template_does_not_write_are_found_without_a_run(
    template: str, tools: tuple[str, ...] | None, episodes: dict[str, Any], is_unwritten: bool
) -> None:
    prompts = [row(0, ()), row(1, tools)]
    inputs = PreparedInputs(families.tokenizer_with(template), PromptSet(prompts, [""] * 2), HeldOut(), ())
    config = parse_config(VALUES | {"episodes": episodes})
    known = {"research": TOOLS, "without": ()}
    assert unwritten_tools(config, inputs, prompts, known) == ["research"] * is_unwritten


async def test_a_row_with_another_tool_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^d\.jsonl row 2 .*'brows' .*'browse'"):
        await prepare(families.QWEN, row(0, None), row(1, ("brows",)))


@pytest.mark.parametrize("template", [families.GEMMA_4, template_text("r1_zero")], ids=["gemma_4", "r1_zero"])
async def test_a_chat_template_without_turns_for_results_serves_where_they_are_inline(template: str) -> None:
    (text,) = await prepare(template, row(0, None), config=parse_config(VALUES | {"episodes": INLINE}))
    assert "Which is the tallest?" in text


async def test_a_chat_template_that_writes_no_results_serves_where_they_are_messages_of_the_user() -> None:
    message = "^environments.research cannot be played: model.chat_template: the template writes no results of tools"
    with pytest.raises(InvalidArgument, match=message):
        await prepare(families.GEMMA_3, row(0, None))
    config = parse_config(VALUES | {"episodes": {"user_results": "{result}"}})
    (text,) = await prepare(families.GEMMA_3, row(0, None), config=config)
    assert "Which is the tallest?<end_of_turn>" in text


@pytest.mark.parametrize(("max_tokens", "is_refused"), [(11, True), (12, False)])
async def test_a_limit_without_room_for_a_turn_is_refused(max_tokens: int, is_refused: bool) -> None:
    config = parse_config(VALUES | {"sampling": {"max_completion_tokens": max_tokens}})
    message = r"^sampling\.max_completion_tokens \(11\) has no room for a turn .* the 11 tokens with which"
    with pytest.raises(InvalidArgument, match=message) if is_refused else contextlib.nullcontext():
        await prepare(families.QWEN, row(0, None), config=config)


async def test_episodes_of_an_evaluation_alone_have_the_room_of_evaluations() -> None:
    sampling, evaluation = {"max_completion_tokens": 4}, {"max_completion_tokens": 64}
    single = replace(row(0, None), environment=None)
    config = parse_config(VALUES | {"sampling": sampling, "evaluation": evaluation})
    await prepare(families.QWEN, single, config=config, questions=(row(1, None),))
    config = parse_config(VALUES | {"sampling": evaluation, "evaluation": sampling})
    with pytest.raises(InvalidArgument, match=r"^evaluation\.max_completion_tokens \(4\)"):
        await prepare(families.QWEN, single, config=config, questions=(row(1, None),))


@pytest.mark.parametrize(("parameters", "why"), [({}, "empty"), ({"type": "strin"}, "not a usable JSON")])
async def test_a_tool_without_a_schema_of_its_parameters_is_refused(parameters: dict[str, Any], why: str) -> None:
    tools = (*TOOLS, ToolDefinition("go", "", parameters))
    with pytest.raises(InvalidArgument, match=f"^environments.research .*'go': .*{why}"):
        await prepare(families.QWEN, row(0, None), tools=tools)


NAMES = {"research": ["search", "browse"], "agent": []}


def row_of(environment: str, *tools: str) -> Prompt:
    return Prompt("d.jsonl:6", np.zeros(1, np.int32), "", (), (), EnvironmentTask(environment, {}, tools))


def test_tools_that_the_environment_has_are_well() -> None:
    unnamed = Prompt("d.jsonl:7", np.zeros(1, np.int32), "", (), (), EnvironmentTask("research", {}))
    single = Prompt("d.jsonl:8", np.zeros(1, np.int32), "", ())
    check_tools_of_rows([row_of("research", "browse"), row_of("research"), row_of("agent"), unnamed, single], NAMES)


def test_rows_of_an_environment_whose_tools_are_not_known_are_left_out() -> None:
    check_tools_of_rows([row_of("remote", "anything")], NAMES)


def test_another_name_is_refused_with_row_value_and_cure() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_tools_of_rows([row_of("research", "browse", "serch")], NAMES)
    assert has_all(caught.value.message, "d.jsonl row 7 ", "'serch'", "'search'", "'research'", ": search, browse")
    with pytest.raises(InvalidArgument, match=r"'x'.* 'agent' .*: none$"):
        check_tools_of_rows([row_of("agent", "x")], NAMES)
