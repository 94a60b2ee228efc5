"""Reads calls whose parameters are tags inside <tool_call>: of Qwen3-Coder and Qwen3.5, and of GLM-4.5 and later.

<tool_call>                                     <tool_call>NAME
<function=NAME>                                 <arg_key>PARAMETER</arg_key>
<parameter=PARAMETER>                           <arg_value>VALUE</arg_value>
VALUE                                           </tool_call>
</parameter>
</function>
</tool_call>
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, check_json, end_unread, search_outside, typed

_CLOSE = "</tool_call>"
_OPENING = re.compile("<tool_call>")


@dataclass(frozen=True)
class _Form:
    name: re.Pattern[str]
    """The beginning of a call, with the tool's name."""
    parameter: re.Pattern[str]
    """The beginning of a parameter, with its name."""
    parameter_end: str
    end: str
    """The end of a call, before its closing tag."""
    beginning: str
    """The beginning of a call, for people."""
    has_lines: bool
    """Whether one line break at each end of a value is not part of the value."""


_QWEN3 = _Form(
    re.compile(r"\s*+<function=([^<>\n]*+)>"),
    re.compile(r"\s*+<parameter=([^<>\n]*+)>"),
    "</parameter>",
    "</function>",
    "<function=NAME>",
    has_lines=True,
)
_GLM = _Form(
    re.compile(r"\s*+([\w.:/-]++)"),
    re.compile(r"\s*+<arg_key>([^<>\n]*+)</arg_key>\s*+<arg_value>"),
    "</arg_value>",
    "",
    "the name of the tool",
    has_lines=False,
)


def find_qwen3_xml(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. A value is text unless the tool's schema refuses a text
    (`typed`), and cannot contain its closing tag."""
    return _find(text, tools, _QWEN3)


def find_glm(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts, with values as in `find_qwen3_xml`."""
    return _find(text, tools, _GLM)


def _find(text: str, tools: Sequence[ToolDefinition], form: _Form) -> Iterator[Found]:
    by_name = {tool.name: tool for tool in tools}
    begun = search_outside(_OPENING, text, answer_start(text))
    while begun:
        found = _read(text, begun.start(), begun.end(), by_name, form)
        yield found
        begun = search_outside(_OPENING, text, found.end)


def _read(text: str, start: int, place: int, tools: dict[str, ToolDefinition], form: _Form) -> Found:
    arguments, name = dict[str, Any](), ""
    try:
        function = form.name.match(text, place)
        if function is None or not function[1].strip():
            raise ValueError(f"a call needs {form.beginning} first")
        name, place = function[1].strip(), function.end()
        while parameter := form.parameter.match(text, place):
            place = parameter.end()
            close = text.find(form.parameter_end, place)
            if close < 0 or _OPENING.search(text, place, close):
                raise ValueError(f"parameter {parameter[1]!r:.60} does not end with {form.parameter_end}")
            value = text[place:close]
            if form.has_lines:
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[parameter[1].strip()] = value
            place = close + len(form.parameter_end)
        end = re.compile(rf"\s*+{form.end}\s*+{_CLOSE}").match(text, place)
        if end is None:
            raise ValueError(f"behind the parameters must come {' and '.join(filter(None, (form.end, _CLOSE)))}")
        if tool := tools.get(name):
            arguments = {key: typed(value, key, tool) for key, value in arguments.items()}
        check_json(arguments)
        return Found(start, end.end(), name, arguments)
    except ValueError as error:
        return Found(start, end_unread(text, place, _CLOSE, _OPENING), name, problem=str(error))
