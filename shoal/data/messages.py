"""Messages of rows: their texts and tool calls. A field that no chat template would get is refused, unless the field
only describes the message."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from shoal.config.load import without_nulls
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.data.json_text import parse_json_text
from shoal.data.rows import Row, is_empty, kind_of_media, media_refusal, unicode_of
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json

_MESSAGE = frozenset(("role", "content", "tool_calls", "tool_call_id", "name"))
_CALL, _FUNCTION = frozenset(("id", "type", "function")), frozenset(("name", "arguments"))
_PART = frozenset(("type", "text"))
_FORMS = "a text, or a list of parts such as {'type': 'text', 'text': 'Hello'}"
_IDS = frozenset(("id", "message_id", "parent_id", "turn_id", "conversation_id", "uuid"))
_TIMES = frozenset(("timestamp", "created", "created_at", "create_time", "updated_at", "update_time"))
_ABOUT = _IDS | _TIMES | {"metadata", "weight"}
"""Fields that name, date or weigh a message, and are not part of the message's words."""
_THOUGHTS = frozenset(("reasoning_content", "reasoning", "thinking", "thoughts"))
_CURES = {
    "function_call": "write the call as tool_calls, which chat templates render",
    "from": "messages have role and content, not from and value",
    **dict.fromkeys(
        _THOUGHTS,
        "put the thought into the content in the form of the model's chat template, or leave the thought out: most "
        "templates drop the thoughts of earlier turns",
    ),
}


def messages_of(
    row: Row, value: Any, column: str, *, has_answer: bool = False
) -> tuple[tuple[ChatMessage, ...], frozenset[str]]:
    """Reads a list of messages, such a list as JSON text, or a question. Returns the messages, and the names of omitted
    fields.

    With `has_answer`, a final message of the assistant after other messages is the reference answer, and is omitted.

    Raises `InvalidArgument`, with the row and the message, for content that the prompt would lack: media such as
    images, a call that cannot be read, and words or values in a field other than role, content, tool_calls,
    tool_call_id and name. Numbers, booleans and nulls in other fields are allowed, since they mean nothing to a model.
    Fields about a message, such as its id or time, are omitted.
    """
    if isinstance(value, str):
        value = _parsed_messages(row, value, column) or [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise InvalidArgument(f"{row.where}: {column} must be a question or a list of messages (found: {value!r:.80})")
    if has_answer and len(value) > 1 and isinstance(value[-1], Mapping) and value[-1].get("role") == "assistant":
        value = value[:-1]
    messages = tuple(_Reader(row, f"{column}[{index}]").message(message) for index, message in enumerate(value))
    left_out = (name for message in value for name in _ABOUT & message.keys() if not _says_nothing(message[name]))
    return messages, frozenset(left_out)


def _parsed_messages(row: Row, text: str, column: str) -> list[Any] | None:
    """Returns the messages of a JSON text; None for any other text, which is a question. Raises `InvalidArgument` for
    messages in which a key occurs twice."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = parse_json(text)
    except ValueError:
        return None
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        return None
    try:
        messages: list[Any] = parse_json_text(text)
    except ValueError as error:
        raise InvalidArgument(f"{row.where}: {column} has messages as JSON text: {error}") from None
    return messages


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and bool(value.keys() & {"content", "tool_calls"})


class _Reader:
    """Reads one message of a row."""

    def __init__(self, row: Row, place: str) -> None:
        self._row, self._place = row, place

    def message(self, message: Any) -> ChatMessage:
        if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
            raise self._refusal(f"needs a content, and a role that is a text (found: {message!r:.80})")
        self._refuse_others(message, _MESSAGE | _ABOUT, "")
        calls = self._calls(message.get("tool_calls"))
        content = message.get("content")
        return ChatMessage(
            role,
            "" if content is None and calls else self._text(content),
            calls,
            self._named(message, "tool_call_id"),
            self._named(message, "name"),
        )

    def _text(self, content: Any) -> str:
        if isinstance(content, str):
            return self._unicode(content)
        if not isinstance(content, list) or is_empty(content):
            raise self._refusal(f"needs a content: {_FORMS} (found: {content!r:.80})")
        return "".join(self._part(part, index) for index, part in enumerate(content) if not is_empty(part))

    def _part(self, part: Any, index: int) -> str:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if media := kind_of_media(kind):
            raise self._refusal(f"has content of the type {kind!r:.40}: {media_refusal(media)}")
        if kind != "text" or not isinstance(text, str):
            raise self._refusal(f"has content with a part that is not text: {part!r:.80}; the content must be {_FORMS}")
        self._refuse_others(part, _PART, f".content[{index}]")
        return self._unicode(text)

    def _calls(self, value: Any) -> tuple[ToolCall, ...]:
        if isinstance(value, str) and value.strip():
            value = self._json(value, "tool_calls")
        if is_empty(value):
            return ()
        if not isinstance(value, list):
            raise self._refusal(f"tool_calls must be a list (found: {value!r:.80})")
        return tuple(self._call(call, f".tool_calls[{index}]") for index, call in enumerate(value))

    def _call(self, call: Any, place: str) -> ToolCall:
        """Reads a call in the form of OpenAI's messages, or only the function of such a call."""
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str) or not name:
            raise self._refusal(
                f"{place[1:]} must be a call such as {{'id': 'call-1', 'type': 'function', 'function': {{'name': "
                f"'add', 'arguments': {{'a': 1}}}}}} (found: {call!r:.80})"
            )
        if (kind := call.get("type")) not in (None, "function"):
            raise self._refusal(
                f"{place[1:]} is of the type {kind!r:.40}; only calls of the type 'function' are rendered"
            )
        if function is call:
            self._refuse_others(call, _CALL | _FUNCTION, place)
        else:
            self._refuse_others(call, _CALL, place)
            self._refuse_others(function, _FUNCTION, f"{place}.function")
        arguments = self._arguments(function.get("arguments"), place)
        text = self._unicode(json.dumps(arguments, ensure_ascii=False))
        raw = self._unicode(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False))
        return ToolCall(self._named(call, "id"), name, text, ToolCallStatus.OK, raw)

    def _arguments(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, str):
            value = self._json(value, f"{place[1:]}.arguments") if value.strip() else {}
        elif self._row.is_of_table:  # Its columns have a null for each name that only other rows' calls have.
            value = without_nulls(value)
        if not isinstance(value, Mapping | None):
            raise self._refusal(
                f"{place[1:]}.arguments must be an object, or JSON text of an object (found: {value!r:.80})"
            )
        return dict(value or {})

    def _json(self, text: str, what: str) -> Any:
        try:
            return parse_json_text(text)
        except ValueError as error:
            raise self._refusal(f"{what} is not JSON: {error} (found: {text!r:.80})") from None

    def _named(self, values: Mapping[str, Any], field: str) -> str:
        value = values.get(field)
        if not isinstance(value, str | None):
            raise self._refusal(f"{field} must be a text (found: {value!r:.80})")
        return self._unicode(value or "")

    def _refuse_others(self, values: Mapping[str, Any], known: Collection[str], place: str) -> None:
        """Raises `InvalidArgument` for a field whose words or values would be in no prompt."""
        for name, value in values.items():
            if name in known or _says_nothing(value):
                continue
            field = f"{place}.{name}"[1:]
            if media := kind_of_media(name):
                raise self._refusal(f"has the field {field}: {media_refusal(media)}")
            cure = _CURES.get(name, "remove the field from the data, or move the field's words into the content")
            raise self._refusal(f"has the field {field} ({value!r:.60}), which would be in no prompt: {cure}")

    def _unicode(self, text: str) -> str:
        return unicode_of(self._row, text, self._place)

    def _refusal(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"{self._row.where}: {self._place} {what}")


def _says_nothing(value: Any) -> bool:
    return is_empty(value) or isinstance(value, bool | int | float)
