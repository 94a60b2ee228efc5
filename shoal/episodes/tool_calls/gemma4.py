"""Reads calls as Gemma 4 writes them: <|tool_call>call:NAME{PARAMETER:VALUE,...}<tool_call|>.

A text stands between two marks <|"|>. Other values are written as in JSON, with such texts, and with keys that may lack
the marks.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, check_json, end_unread, search_outside, skip_space

_OPENING = re.compile(r"<\|tool_call>")
_CLOSE = "<tool_call|>"
_NAME = re.compile(r"\s*+call:([^{}<>\s]++)(?=\{)")
_MARK = '<|"|>'
_KEY = re.compile(r"\s*+([^\s:,{}\[\]<>]++)\s*+:")
_LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_MAX_DEPTH = 32


def find_gemma4(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts."""
    begun = search_outside(_OPENING, text, answer_start(text))
    while begun:
        found = _read(text, begun)
        yield found
        begun = search_outside(_OPENING, text, found.end)


def _read(text: str, begun: re.Match[str]) -> Found:
    name, reader = "", _Reader(text, begun)
    try:
        named = _NAME.match(text, begun.end())
        if named is None:
            raise ValueError("a call needs call:NAME{ first")
        name, reader.place = named[1], named.end()
        arguments = reader.value()
        reader.expect(_CLOSE)
        check_json(arguments)
        return Found(begun.start(), reader.place, name, arguments)
    except ValueError as error:
        return Found(begun.start(), end_unread(text, reader.place, _CLOSE, _OPENING), name, problem=str(error))


class _Reader:
    """Reads values behind the beginning of a call. Raises `ValueError` if no value is there."""

    def __init__(self, text: str, begun: re.Match[str]) -> None:
        self._text = text
        self._start, self.place = begun.span()

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if self._takes(_MARK):
            return self._marked()
        if self._takes("{"):
            pairs: dict[str, Any] = {}
            while not self._takes("}"):
                if pairs:
                    self.expect(",")
                key = self._key()
                if key in pairs:
                    raise ValueError(f"{key!r:.60} is given twice")
                pairs[key] = self.value(depth + 1)
            return pairs
        if self._takes("["):
            items: list[Any] = []
            while not self._takes("]"):
                if items:
                    self.expect(",")
                items.append(self.value(depth + 1))
            return items
        literal = _LITERAL.match(self._text, skip_space(self._text, self.place))
        if literal is None:
            raise ValueError(f"expecting a value {self._where()}; a text stands between {_MARK} and {_MARK}")
        self.place = literal.end()
        return json.loads(literal[0])

    def expect(self, mark: str) -> None:
        if not self._takes(mark):
            raise ValueError(f"expecting {mark} {self._where()}")

    def _key(self) -> str:
        if self._takes(_MARK):
            key = self._marked()
            self.expect(":")
            return key
        found = _KEY.match(self._text, self.place)
        if found is None:
            raise ValueError(f"expecting PARAMETER: {self._where()}")
        self.place = found.end()
        return found[1]

    def _marked(self) -> str:
        end = self._text.find(_MARK, self.place)
        if end < 0:
            raise ValueError(f"a text does not end with {_MARK}")
        found = self._text[self.place : end]
        self.place = end + len(_MARK)
        return found

    def _takes(self, mark: str) -> bool:
        place = skip_space(self._text, self.place)
        if not self._text.startswith(mark, place):
            return False
        self.place = place + len(mark)
        return True

    def _where(self) -> str:
        return f"at character {self.place - self._start + 1}"
