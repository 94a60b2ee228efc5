"""Episodes of two turns with a tool, in the forms of families of models."""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest

from services.coordinator.rollout.episodes.messages import Observation, PolicyTurn
from services.coordinator.rollout.episodes.stage import Stages, plain_renderer
from services.coordinator.rollout.episodes.stream import EnvironmentInfo
from shoal.chat_templates.thoughts import without_thoughts
from shoal.config import parse_config
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.rollout import Completion, EnvironmentTask, Prompt, ToolOutcome
from tests.support import chat_templates as families
from tests.support.turn_generators import Generators, play_group
from tests.unit.services.coordinator.rollout.episodes.test_episode_player import Environments

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = ToolDefinition("search", "Finds pages.", PARAMETERS)
QUESTION, THANKS = ChatMessage("user", "Which is the tallest?"), ChatMessage("user", "Thanks.")


@dataclass(frozen=True)
class Family:
    template: str
    call: str
    """The first turn."""
    answer: str
    """The second turn."""
    episodes: dict[str, Any]
    difference: tuple[str, str] | None = field(default=None)
    """The beginnings of what an episode has where the whole conversation, rendered at once, has other text."""


FAMILIES = {
    "gemma_3": Family(
        families.GEMMA_3,
        'I look.\n```tool_code\nsearch(query="K2")\n```<end_of_turn>',
        "It is 8611 m.<end_of_turn>",
        {"tool_parser": "pythonic", "user_results": "```tool_output\n{result}\n```"},
    ),
    "gemma_4": Family(
        families.GEMMA_4,
        '<|tool_call>call:search{query:<|"|>K2<|"|>}<tool_call|><|tool_response>',
        "It is 8611 m.<turn|>",
        {"tool_parser": "gemma4"},
    ),
    "gpt_oss": Family(
        families.GPT_OSS,
        ' to=functions.search<|channel|>commentary json<|message|>{"query": "K2"}<|call|>',
        "<|channel|>analysis<|message|>8611 m.<|end|><|start|>assistant"
        "<|channel|>final<|message|>It is 8611 m.<|return|>",
        {"tool_parser": "harmony"},
        ("<|channel|>analysis", "<|channel|>final"),
    ),
    "gpt_oss_without_a_thought": Family(
        families.GPT_OSS,
        ' to=functions.search<|channel|>commentary json<|message|>{"query": "K2"}<|call|>',
        "<|channel|>final<|message|>It is 8611 m.<|return|>",
        {"tool_parser": "harmony"},
        ("<|return|><|start|>user", "<|end|><|start|>user"),
    ),
    "glm_4": Family(
        families.GLM_4,
        "\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>K2</arg_value>\n</tool_call><|observation|>",
        "It is 8611 m.<|user|>",
        {"tool_parser": "glm"},
    ),
    "phi_4_mini": Family(
        families.PHI_4_MINI,
        '<|tool_call|>{"name": "search", "arguments": {"query": "K2"}}<|/tool_call|><|end|>',
        "It is 8611 m.<|end|>",
        {"tool_parser": "phi4_mini"},
    ),
    "qwen_3.5": Family(
        families.QWEN_35,
        "I look.\n</think>\n\n\n<tool_call>\n<function=search>\n<parameter=query>\nK2\n</parameter>\n</function>\n"
        "</tool_call><|im_end|>",
        "8611 m.\n</think>\n\nIt is 8611 m.<|im_end|>",
        {"tool_parser": "qwen3_xml"},
        ("<think>\nI look.", "\n<tool_call>"),
    ),
}


def answer(turn: PolicyTurn) -> Observation:
    results = tuple(ChatMessage("tool", "8611 m", (), call.id, call.name) for call in turn.message.tool_calls)
    return Observation(results, None, False, tuple(ToolOutcome("search", True, False, 0.1) for _ in results))


async def play(family: Family, tokenizer: Any) -> tuple[TurnRenderer, list[int], Completion]:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d", "environment": "research"}]},
            "sampling": {"max_completion_tokens": 1000},
            "environments": [{"name": "research", "server": "127.0.0.1:1"}],
            "episodes": family.episodes,
        }
    )
    stages = Stages(config, tokenizer)
    await stages.open([EnvironmentInfo("research", (SEARCH,), True, "")])
    task = EnvironmentTask("research", {})
    renderer = plain_renderer(config, tokenizer, (), None).with_tools([SEARCH])
    token_ids = renderer.prompt_ids([QUESTION])
    prompt = Prompt("p:0", np.array(token_ids, np.int32), renderer.prompt([QUESTION]), (), (QUESTION,), task)
    scripted: Any = {
        "pause": MagicMock(unpaused=AsyncMock(), sampling_for_training=contextlib.nullcontext, running_s=lambda: 0.0),
        "generators": Generators(lambda turn: (family.call, family.answer)[turn - 1], tokenizer=tokenizer),
        "environments": Environments(answer),
        "events": SimpleNamespace(add=lambda *arguments, **values: None),
    }
    (completion,) = await play_group(config, stages, prompt, seeds=[100], return_support=False, **scripted)
    return renderer, token_ids, completion


@pytest.mark.parametrize("name", FAMILIES)
async def test_the_tokens_of_an_episode_are_those_sampled_and_those_of_the_template_between_them(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = families.tokenizer_with(family.template)
    renderer, prompt, completion = await play(family, tokenizer)
    token_ids, episode = completion.token_ids.tolist(), completion.episode
    assert episode is not None and episode.stop_reason == "no_call" and len(episode.turns) == 2, episode
    first, last = episode.turns
    (call,) = first.message.tool_calls
    assert (call.name, call.arguments_json, call.status.value) == ("search", '{"query": "K2"}', "ok"), call
    sampled = [token_ids[turn.start : turn.end] for turn in episode.turns]
    assert sampled == [tokenizer.encode(text, add_special_tokens=False) for text in (family.call, family.answer)]
    assert completion.loss_mask is not None and completion.loss_mask.sum() == sum(map(len, sampled))
    opening = renderer.opening([QUESTION], [])
    results = renderer.observation(sampled[0][-1], [call], first.observations)
    assert token_ids == [*opening, *sampled[0], *results, *sampled[1]], tokenizer.decode(token_ids)

    conversation = [QUESTION, first.message, *first.observations]
    assert renderer.whole(conversation) == [*prompt, *opening, *sampled[0], *results], "up to the second turn"
    conversation += [ChatMessage("assistant", without_thoughts(last.message.content)), THANKS]
    whole = renderer.whole(conversation)
    in_turns = [*prompt, *token_ids, *renderer.observation(token_ids[-1], (), [THANKS])]
    if family.difference is None:
        assert in_turns == whole, (tokenizer.decode(in_turns), tokenizer.decode(whole))
        return
    place = next(i for i, (one, other) in enumerate(zip(in_turns, whole, strict=False)) if one != other)
    for text, tokens in zip(family.difference, (in_turns, whole), strict=True):
        # Texts with a common beginning differ behind it.
        decoded = tokenizer.decode(tokens[max(0, place - len(text)) : place + len(text)])
        assert text in decoded, decoded
