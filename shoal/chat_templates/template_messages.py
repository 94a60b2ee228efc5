"""Messages in the forms that chat templates take."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from shoal.conversation import ChatMessage, ToolCall, openai_call
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json


def for_template(message: ChatMessage) -> dict[str, Any]:
    """Returns a message for the template. Raises `InvalidArgument` if the arguments of a call are not a JSON object,
    since an agent's client may send any text."""
    calls = [openai_call(call, _arguments_of(call)) for call in message.tool_calls]
    named = {"tool_call_id": message.tool_call_id, "name": message.name, "tool_calls": calls}
    return {"role": message.role, "content": message.content} | {key: value for key, value in named.items() if value}


def _arguments_of(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = parse_json(call.arguments_json or "{}")
        if not isinstance(arguments, dict):
            raise TypeError
        json.dumps(arguments, ensure_ascii=False).encode()  # Fails for lone surrogates.
    except (ValueError, TypeError):
        raise InvalidArgument(
            f"the arguments of the call of {call.name} must be a JSON object that is not nested deeply"
        ) from None
    return arguments


def render_in_any_form(template: BoundedTemplate, dialogues: Sequence[Dialogue]) -> list[str | Unrendered]:
    """Returns the text of each dialogue, as `BoundedTemplate.render` does. Messages that the template refuses are tried
    in other forms; if all are refused, the result has the first refusal."""
    outcomes = template.render(dialogues)
    forms = {
        index: _other_forms(dialogues[index].messages)
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, Unrendered) and outcome.refusal
    }
    while tried := {index: form for index in forms if (form := next(forms[index], None))}:
        others = template.render([replace(dialogues[index], messages=form) for index, form in tried.items()])
        for index, other in zip(tried, others, strict=False):
            if not isinstance(other, Unrendered):
                outcomes[index] = other
                del forms[index]
    return outcomes


def without_last_end(text: str, begun: str, end_of_text: str | None) -> str:
    """Returns the text of a prompt that an episode continues, given the text without and with the beginning of the
    policy's turn. A few templates, such as Phi-3's, end a text that begins no turn with the end of a sequence, which
    white space may follow."""
    written = text.rstrip()
    if begun.startswith(text) or not end_of_text or not written.endswith(end_of_text):
        return text
    return written.removesuffix(end_of_text)


def _other_forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields the messages in the forms that some templates demand, for messages that a template refuses: the words of
    the system in front of the first message of the user, as Gemma 3's template writes them; neighboring messages of the
    user as one message; and the arguments of calls as JSON text."""
    asked = [dict(message) for message in messages]
    tried = [asked]
    for change in (_without_system, _with_joined_users, lambda form: _with_joined_users(_without_system(form))):
        if (form := change(asked)) not in tried:
            tried.append(form)
    for form in tried:
        if form is not asked:
            yield form
        if any("tool_calls" in message for message in form):
            yield [_with_texts(message) for message in form]


def _without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    roles = [message["role"] for message in messages[:2]]
    if roles != ["system", "user"]:
        return [*messages]
    return [messages[1] | {"content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}, *messages[2:]]


def _with_joined_users(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == "user":
            joined[-1] = joined[-1] | {"content": f"{joined[-1]['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return message | {"tool_calls": [*map(_with_text, calls)]} if calls else message


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
