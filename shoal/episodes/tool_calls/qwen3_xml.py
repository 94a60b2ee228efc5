"""Calls as Qwen3-Coder and Qwen3.5 write them, tags inside <tool_call>.

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

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, behind_thoughts, check_json, typed

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
_END = re.compile(rf"\s*</function>\s*{_CLOSE}")
_PARAMETER_END = "</parameter>"


def find_qwen3_xml(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls behind the policy's thoughts.

    A value is text, or JSON where the tool's schema says so; one line break at each end is not part of it. It ends at
    the first closing tag, so it cannot contain one.
    """
    parameters = {tool.name: tool.parameters.get("properties") or {} for tool in tools}
    start = text.find(_OPEN, behind_thoughts(text))
    while start >= 0:
        found = _read(text, start, parameters)
        yield found
        start = text.find(_OPEN, found.end)


def _read(text: str, start: int, parameters: dict[str, dict[str, Any]]) -> Found:
    place, arguments, name = start + len(_OPEN), {}, ""
    try:
        function = _FUNCTION.match(text, place)
        if function is None or not function[1].strip():
            raise ValueError("a call needs <function=NAME> first")
        name, place = function[1].strip(), function.end()
        while parameter := _PARAMETER.match(text, place):
            place = parameter.end()
            close, following = text.find(_PARAMETER_END, place), text.find(_OPEN, place)
            if close < 0 or 0 <= following < close:
                raise ValueError(f"parameter {parameter[1]!r:.60} does not end with {_PARAMETER_END}")
            value = text[place:close].removeprefix("\n").removesuffix("\n")
            arguments[parameter[1].strip()] = typed(value, parameters.get(name, {}).get(parameter[1].strip()))
            place = close + len(_PARAMETER_END)
        end = _END.match(text, place)
        if end is None:
            raise ValueError(f"behind the parameters must come </function> and {_CLOSE}")
        check_json(arguments)
        return Found(start, end.end(), name, arguments)
    except ValueError as error:
        close, following = text.find(_CLOSE, place), text.find(_OPEN, place)
        if close >= 0 and (following < 0 or close < following):
            return Found(start, close + len(_CLOSE), name, problem=str(error))
        return Found(start, following if following >= 0 else len(text), name, problem=str(error))
