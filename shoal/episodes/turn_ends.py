"""The tokens with which a chat template ends the policy's turns.

Most templates end all turns with one token. GLM's end a turn with the token that begins the next message. Those of
gpt-oss and Gemma 4 write results of tools behind a token that ends only calls, and gpt-oss's ends parts of a turn with
the token that also ends the whole turn.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shoal.chat_templates.probes import ANSWER, STAND_IN, first_token
from shoal.conversation import ToolCall, ToolCallStatus, openai_call
from shoal.errors import InvalidArgument

TRIAL = "trial-of-a-message"
_CALLS = [ToolCall(f"call1234{number}", "-", "{}", ToolCallStatus.OK, "") for number in range(2)]

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""Returns the text of messages, with or without the beginning of the policy's turn behind them. Raises
`InvalidArgument`."""


@dataclass(frozen=True)
class TurnEnds:
    """The tokens between the policy's turns and the messages behind the turns."""

    answer: str
    """The token between an answer and a message of a user."""
    calls: str
    """The token between calls and their results; empty if the template writes no results."""
    content: str
    """The content of a stand-in for calls. It is empty for templates that write the content behind the results."""
    closing: frozenset[str]
    """The ends that belong to the policy's turn. The other ends begin the next message."""
    stops: tuple[str, ...]
    """The tokens at which sampling has to stop."""


def find_turn_ends(render: Render, tokenizer: Any, *, has_results: bool) -> TurnEnds | None:
    """Returns the ends of turns; None if no special token ends an answer. Without `has_results` no results of tools
    follow calls."""
    text = render([*STAND_IN, {"role": "user", "content": TRIAL}], True)
    behind = text.rpartition(ANSWER)[2]
    answer = first_token(tokenizer, behind)
    if ANSWER not in text or answer is None:
        return None
    added = _pattern(tokenizer)
    last = render(STAND_IN, False).rpartition(ANSWER)[2]
    stop = answer
    inside = _behind_content(render)
    if answer in inside:  # It ends parts of a turn: look for a token that ends whole turns only.
        ends = [token for token in added.findall(last) if token not in inside]
        answer = next((token for token in ends if token in behind), answer)
        stop = ends[0] if ends else answer
    calls, content = (_end_of_calls(render, added, answer) if has_results else None) or ("", "")
    closing = {answer} if last.strip() else set()
    if calls and _closes_calls(render, calls, content):
        closing.add(calls)
    return TurnEnds(answer, calls, content, frozenset(closing), tuple(dict.fromkeys(filter(None, (stop, calls)))))


def stand_in_with(calls: Sequence[ToolCall], content: str) -> list[dict[str, Any]]:
    """Returns the placeholder for a turn with as many calls as the policy made. The last argument is `ANSWER`."""
    functions = [openai_call(call, {"-": ANSWER}) for call in calls]
    return [STAND_IN[0], {"role": "assistant", "content": content, "tool_calls": functions}]


def _results(number: int) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "content": f"{TRIAL}-{index}", "tool_call_id": call.id, "name": call.name}
        for index, call in enumerate(_CALLS[:number])
    ]


def _end_of_calls(render: Render, added: re.Pattern[str], answer: str) -> tuple[str, str] | None:
    """Returns the token between calls and results, and the content of the stand-in; None if the template does not write
    results behind calls. `answer` is the end of answers."""
    for content in (ANSWER, ""):
        with suppress(InvalidArgument):
            text = render([*stand_in_with(_CALLS[:1], content), *_results(1)], True)
            _, has_call, behind = text.rpartition(ANSWER)
            before, has_result, _ = behind.partition(f"{TRIAL}-0")
            tokens = added.findall(before) if has_call and has_result else []
            if answer in tokens:
                return answer, content
            within = _between_calls(render, content, text.count(ANSWER))
            if token := next((token for token in tokens if token not in within), None):
                return token, content
    return None


def _between_calls(render: Render, content: str, num_before: int) -> str:
    """Returns the text between the arguments of two calls of a turn; empty if the template takes one call a turn. With
    one call there are `num_before` arguments and contents."""
    with suppress(InvalidArgument):
        parts = render([*stand_in_with(_CALLS, content), *_results(2)], True).split(ANSWER)
        if len(parts) == num_before + 2:
            return parts[-2]
    return ""


def _closes_calls(render: Render, token: str, content: str) -> bool:
    """Returns whether the end of calls belongs to the policy's turn, rather than to each result or to all results."""
    if token not in render(stand_in_with(_CALLS[:1], content), False).rpartition(ANSWER)[2]:
        return False
    for calls in (_CALLS, _CALLS[:1]):
        with suppress(InvalidArgument):
            text = render([*stand_in_with(calls, content), *_results(2)], True)
            return token not in text.partition(f"{TRIAL}-0")[2].partition(f"{TRIAL}-1")[0]
    return True


def _behind_content(render: Render) -> str:
    """Returns the text between the content and a call of the same turn; empty if the template writes only one."""
    with suppress(InvalidArgument):
        parts = render(stand_in_with(_CALLS[:1], ANSWER), False).split(ANSWER)
        return parts[1] if len(parts) == 3 else ""
    return ""


def _pattern(tokenizer: Any) -> re.Pattern[str]:
    added = sorted(filter(str.strip, tokenizer.get_added_vocab()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, added)) or r"(?!)")
