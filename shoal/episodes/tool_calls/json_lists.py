"""Reads calls written as JSON behind a mark, alone or in a list.

Phi-4-mini:        <|tool_call|>[{"name": NAME, "arguments": {...}}]<|/tool_call|>
Mistral, at first: [TOOL_CALLS][{"name": NAME, "arguments": {...}}]
Mistral, later:    [TOOL_CALLS]NAME[ARGS]{...}, once for each call
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import (
    MAX_CALLS,
    Found,
    arguments_of,
    call_in_json,
    end_unread,
    read_json_at,
    search_outside,
    skip_space,
)

_PHI4_MINI = re.compile(r"<\|tool_call\|>")
_PHI4_MINI_CLOSE = "<|/tool_call|>"
_MISTRAL = re.compile(r"\[TOOL_CALLS\]")
_MISTRAL_NAME = re.compile(r"\s*+([\w.:/-]++)(?:\[CALL_ID\][^\[\]{]*+)?\s*+(?:\[ARGS\])?\s*+(?=\{)")
_NO_CLOSE = "</s>"
_KEYS = ("arguments", "parameters")


def find_phi4_mini(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. One call needs no list."""
    begun = search_outside(_PHI4_MINI, text, answer_start(text))
    while begun:
        calls = _read_list(text, begun, _PHI4_MINI_CLOSE)
        yield from calls
        begun = search_outside(_PHI4_MINI, text, calls[-1].end)


def find_mistral(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts, in the earlier and the later form."""
    begun = search_outside(_MISTRAL, text, answer_start(text))
    while begun:
        named = _MISTRAL_NAME.match(text, begun.end())
        calls = [_read_named(text, begun, named)] if named else _read_list(text, begun, "")
        yield from calls
        begun = search_outside(_MISTRAL, text, calls[-1].end)


def _read_named(text: str, begun: re.Match[str], named: re.Match[str]) -> Found:
    try:
        value, end = read_json_at(text, named.end(), begun.start())
        return Found(begun.start(), end, named[1], arguments_of(value))
    except ValueError as error:
        end = end_unread(text, named.end(), _NO_CLOSE, begun.re)
        return Found(begun.start(), end, named[1], problem=str(error))


def _read_list(text: str, begun: re.Match[str], closing: str) -> list[Found]:
    """Returns the calls behind a mark, at least one. What cannot be read is a call with a problem."""
    calls: list[Found] = []
    start, place = begun.start(), skip_space(text, begun.end())
    is_list = text.startswith("[", place)
    place += is_list
    while not calls or (is_list and text.startswith(",", place)):
        try:
            value, end = read_json_at(text, skip_space(text, place + bool(calls)), start)
        except ValueError as error:
            end = end_unread(text, place, closing or _NO_CLOSE, begun.re)
            return [*calls, Found(start, end, problem=str(error))]
        place = skip_space(text, end)
        calls.append(_call(value, start, place))
        start = place
        if len(calls) > MAX_CALLS:
            return calls
    problem = "" if not is_list or text.startswith("]", place) else "the list of calls does not end with ]"
    place = skip_space(text, place + is_list) if closing and not problem else place + is_list
    if not problem and not text.startswith(closing, place):
        problem = f"the calls do not end with {closing}"
    end = end_unread(text, min(place, len(text)), closing or _NO_CLOSE, begun.re) if problem else place + len(closing)
    last = calls[-1]
    calls[-1] = replace(last, end=end, problem=last.problem or problem, arguments=None if problem else last.arguments)
    return calls


def _call(value: Any, start: int, end: int) -> Found:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    try:
        return Found(start, end, *call_in_json(value, _KEYS))
    except ValueError as error:
        return Found(start, end, problem=str(error))
