"""Reads calls as Qwen3-Coder and Qwen3.5 write them, as tags inside <tool_call>.

<tool_call>
<function=NAME>
<parameter=PARAMETER>
VALUE
</parameter>
</function>
</tool_call>
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, check_json, end_unread, search_outside, typed

_CLOSE = "</tool_call>"
_OPENING = re.compile("<tool_call>")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
_END = re.compile(rf"\s*</function>\s*{_CLOSE}")
_PARAMETER_END = "</parameter>"


def find_qwen3_xml(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. A value is text unless the tool's schema refuses a text
    (`typed`). One line break at each end is not part of a value, and a value cannot contain its closing tag."""
    by_name = {tool.name: tool for tool in tools}
    begun = search_outside(_OPENING, text, answer_start(text))
    while begun:
        found = _read(text, begun.start(), begun.end(), by_name)
        yield found
        begun = search_outside(_OPENING, text, found.end)


def _read(text: str, start: int, place: int, tools: dict[str, ToolDefinition]) -> Found:
    arguments, name = dict[str, Any](), ""
    try:
        function = _FUNCTION.match(text, place)
        if function is None or not function[1].strip():
            raise ValueError("a call needs <function=NAME> first")
        name, place = function[1].strip(), function.end()
        while parameter := _PARAMETER.match(text, place):
            place = parameter.end()
            close, following = text.find(_PARAMETER_END, place), _OPENING.search(text, place)
            if close < 0 or (following and following.start() < close):
                raise ValueError(f"parameter {parameter[1]!r:.60} does not end with {_PARAMETER_END}")
            value = text[place:close].removeprefix("\n").removesuffix("\n")
            key = parameter[1].strip()
            arguments[key] = typed(value, key, tools[name]) if name in tools else value
            place = close + len(_PARAMETER_END)
        end = _END.match(text, place)
        if end is None:
            raise ValueError(f"behind the parameters must come </function> and {_CLOSE}")
        check_json(arguments)
        return Found(start, end.end(), name, arguments)
    except ValueError as error:
        return Found(start, end_unread(text, place, _CLOSE, _OPENING), name, problem=str(error))
