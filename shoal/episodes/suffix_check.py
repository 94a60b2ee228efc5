"""A comparison of a conversation rendered turn by turn, as in an episode, and in one pass, as in later use.

If the texts differ, the policy sees other tokens in training than later: a template may drop thoughts, or close the
last answer differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.chat_templates.thoughts import MARKS
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.episodes.suffix import TurnRenderer

_CONTEXT_TOKENS = 8
_THOUGHT = "I know."
"""The thought of an answer if the template has opened a thought."""
_ANSWERS = ("It is 4.", "Then it is 5.")


@dataclass(frozen=True)
class Turn:
    """An answer of the policy, and the messages that follow it."""

    answer: ChatMessage
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True)
class Difference:
    """The first place where the two renderings of a conversation differ."""

    turn: int
    """The first turn (from 1) whose messages end after the difference; 0 for the messages before the first turn."""
    token: int
    """Number of equal tokens before the difference."""
    in_turns: str
    """The episode's text at the difference."""
    at_once: str
    """The text at the difference if the conversation is rendered in one pass."""

    def __str__(self) -> str:
        where = f"after turn {self.turn}" if self.turn else "before the first turn"
        return (
            f"{where}, after {self.token} equal tokens, an episode has {self.in_turns!r} where the chat template "
            f"writes {self.at_once!r} for the whole conversation"
        )


def trial_turns(tools: Sequence[ToolDefinition]) -> tuple[Turn, ...]:
    """Returns turns for trials of a chat template: calls of the first tool, or talk with a user if there is no tool."""
    if not tools:
        return tuple(Turn(ChatMessage("assistant", answer), (ChatMessage("user", "Go on."),)) for answer in _ANSWERS)
    turns = []
    for number in range(1, len(_ANSWERS) + 1):
        call = ToolCall(f"call{number:03d}01", tools[0].name, "{}", ToolCallStatus.OK, "")
        result = ChatMessage("tool", "Result: 5", tool_call_id=call.id, name=call.name)
        turns.append(Turn(ChatMessage("assistant", "", (call,)), (result,)))
    return tuple(turns)


def find_difference(
    renderer: TurnRenderer, prompt: Sequence[ChatMessage], first: Sequence[ChatMessage], turns: Sequence[Turn]
) -> Difference | None:
    """Returns the first difference between the tokens of an episode and of the same conversation rendered in one pass;
    None if the tokens are equal. Raises the errors of the renderer."""
    messages = [*prompt, *first]
    token_ids = renderer.prompt_ids(prompt) + renderer.opening(prompt, first)
    if difference := _compare(renderer, 0, token_ids, messages):
        return difference
    for number, turn in enumerate(turns, start=1):
        # A policy writes answers and calls in the template's form.
        said, answer = turn.answer, turn.answer.content
        if thought := renderer.opened_thought(token_ids[-_CONTEXT_TOKENS:]):
            answer = f"{_THOUGHT}\n{MARKS[thought]}\n\n{answer}"
            said = replace(said, content=f"{thought}\n{answer}")
        token_ids += renderer.encode(renderer.written(messages, said, turn.messages, otherwise=answer))
        token_ids += renderer.observation(token_ids[-1], said.tool_calls, turn.messages)
        messages += [said, *turn.messages]
        if difference := _compare(renderer, number, token_ids, messages):
            return difference
    return None


def _compare(
    renderer: TurnRenderer, turn: int, in_turns: list[int], messages: Sequence[ChatMessage]
) -> Difference | None:
    at_once = renderer.whole(messages)
    if in_turns == at_once:
        return None
    pairs = zip(in_turns, at_once, strict=False)
    token = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(in_turns), len(at_once)))
    part = slice(token, token + _CONTEXT_TOKENS)
    return Difference(turn, token, renderer.sampled_text(in_turns[part]), renderer.sampled_text(at_once[part]))
