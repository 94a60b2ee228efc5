"""Episodes turn by turn against the same conversations rendered at once."""

import random

import pytest

from shoal.chat_templates import template_text
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.suffix_check import Turn, find_difference, trial_turns
from tests.support import chat_templates as families
from tests.support.chat_templates import tokenizer_with

QUESTION = ChatMessage("user", "What is 2 + 2?")


def said(answer: str, messages: tuple[ChatMessage, ...]) -> Turn:
    return Turn(ChatMessage("assistant", answer), messages)


def conversation(draw: random.Random, roles: tuple[str, ...]) -> tuple[Turn, ...]:
    def text() -> str:
        words = ("four", "2+2", "\n", "ä", "{x}", "  ", "</b>", "is", ".", "🐋")
        return draw.choice(("a", "b")) + " ".join(draw.choices(words, k=draw.randint(1, 8))) + draw.choice(("c", "d"))

    return tuple(
        said(text(), tuple(ChatMessage(draw.choice(roles), text()) for _ in range(draw.randint(1, 3))))
        for _ in range(3)
    )


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (template_text("chatml"), ("user", "tool", "environment")),
        (template_text("tulu"), ("user", "tool")),
        (template_text("zephyr"), ("user", "tool")),
        (families.QWEN, ("user", "tool")),
        (families.LLAMA_3, ("user", "tool", "environment")),
        (families.HERMES, ("user", "tool", "environment")),
        (families.OLMO_3, ("user", "environment")),
        (families.DEEPSEEK, ("user", "tool")),
    ],
    ids=["chatml", "tulu", "zephyr", "qwen", "llama_3", "hermes", "olmo_3", "deepseek"],
)  # fmt: skip
def test_plain_turns_are_rendered_as_the_whole_conversation_is(template: str, roles: tuple[str, ...]) -> None:
    renderer = TurnRenderer(tokenizer_with(template))
    draw = random.Random(7)
    differences = [
        find_difference(renderer, [QUESTION], [ChatMessage("user", "Begin.")], conversation(draw, roles))
        for _ in range(30)
    ]
    assert differences == [None] * 30, next(str(found) for found in differences if found)


def test_thoughts_that_a_template_drops_later_stay_in_an_episode() -> None:
    renderer = TurnRenderer(tokenizer_with(families.QWEN))
    thoughtful = said("<think>2, 3, 4</think>4", (ChatMessage("user", "And 3 + 3?"),))
    found = find_difference(renderer, [QUESTION], [], [thoughtful])
    assert found is not None and found.turn == 1
    assert (found.in_turns, found.at_once) == ("<think>2", "4<|im_end|>\n<|im_start|>user"), str(found)
    results = said("<think>2, 3, 4</think>4", (ChatMessage("tool", "right"),))
    assert find_difference(renderer, [QUESTION], [], [results]) is None, "it keeps them across results of tools"


def test_an_answer_behind_a_thought_that_the_template_opens_has_the_rest_of_the_thought() -> None:
    renderer = TurnRenderer(tokenizer_with(families.QWEN_THINKING))
    tools = [ToolDefinition("search", "Finds pages.", {"type": "object"})]
    assert find_difference(renderer, [QUESTION], [], trial_turns(tools)) is None, "thoughts stay across results"
    found = find_difference(renderer, [QUESTION], [], trial_turns([]))
    assert found is not None and found.in_turns.startswith("<think>"), str(found)
    assert found.at_once.startswith("It is 4."), "the template drops thoughts before the last question"
    found = find_difference(TurnRenderer(tokenizer_with(families.DEEPSEEK_R1)), [QUESTION], [], trial_turns([]))
    assert found is not None and found.at_once.startswith("\n\nIt is"), str(found)


def test_spaces_that_a_template_trims_stay_where_the_policy_sampled_them() -> None:
    renderer = TurnRenderer(tokenizer_with(families.LLAMA_3))
    found = find_difference(renderer, [QUESTION], [], [said("4 ", (ChatMessage("user", "Why?"),))])
    assert found is not None and found.in_turns.startswith(" <|eot_id|>"), str(found)
    assert found.at_once.startswith("<|eot_id|><|start_header_id|>user"), str(found)


def test_an_empty_thought_in_the_beginning_of_an_answer_stays_in_an_episode() -> None:
    renderer = TurnRenderer(tokenizer_with(families.QWEN), variables={"enable_thinking": False})
    found = find_difference(renderer, [QUESTION], [], [said("4", (ChatMessage("tool", "right"),))])
    assert found is not None and found.turn == 1 and found.in_turns.startswith("<think>"), str(found)


def test_the_line_for_people_says_where_and_what() -> None:
    renderer = TurnRenderer(tokenizer_with(families.LLAMA_3))
    found = find_difference(renderer, [QUESTION], [], [said("4 ", (ChatMessage("user", "Why?"),))])
    assert "turn 1" in str(found) and "'<|eot_id|>" in str(found)


@pytest.mark.parametrize("template", [families.HERMES, families.QWEN, families.LLAMA_3, families.OLMO_3])
@pytest.mark.parametrize("tools", [(), (ToolDefinition("search", "Finds.", {"type": "object"}),)])
def test_trial_turns_have_calls_with_results_or_talk_with_the_user(
    template: str, tools: tuple[ToolDefinition, ...]
) -> None:
    turns = trial_turns(tools)
    assert {message.role for turn in turns for message in turn.messages} == {"tool" if tools else "user"}
    assert all(bool(turn.answer.tool_calls) == bool(tools) for turn in turns)
    found = find_difference(TurnRenderer(tokenizer_with(template), tools), [QUESTION], [], turns)
    assert found is None, str(found)
