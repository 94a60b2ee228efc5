"""The dialect `/v1/chat/completions`: from a request to a call of the policy, and back."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from services.reward.environments.endpoint.answers import finish_reason, token_logprobs, usage
from services.reward.environments.endpoint.fields import check_fields, is_on, listed, positive, texts
from services.reward.environments.endpoint.refusals import Refused, invalid, unsupported
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire.conversations import tool_from_wire

AUXILIARY = "auxiliary"
"""Name of the model whose answers are not trained on."""
_READ = ("model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop", "stream", "logprobs")
_IGNORED = (
    "stream_options", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "stop_token_ids",
)  # fmt: skip
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def chat_call(values: Mapping[str, Any]) -> pb.PolicyCall:
    """Makes the call of a request. Raises `Refused`."""
    check_fields(values, _READ, _IGNORED)
    if not isinstance(values.get("stream_options") or {}, dict):
        raise invalid("stream_options", "must be an object")
    is_on(values, "logprobs")
    messages = listed(values, "messages")
    if not messages:
        raise invalid("messages", "must be a list of at least one message")
    return pb.PolicyCall(
        messages=[_message(message, f"messages[{number}]") for number, message in enumerate(messages)],
        tools=[_tool(tool, f"tools[{number}]") for number, tool in enumerate(listed(values, "tools"))],
        max_tokens=positive(values, "max_completion_tokens") or positive(values, "max_tokens"),
        stop_strings=texts(values, "stop"),
        is_auxiliary=values.get("model") == AUXILIARY,
    )


def _message(message: Any, where: str) -> rollout_pb2.ChatMessage:
    if not isinstance(message, dict) or message.get("role") not in [*_ROLES]:
        raise invalid(where, f"must have one of the roles {', '.join(_ROLES)}")
    if message.get("function_call"):
        raise unsupported(f"{where}.function_call", "this form is not read: give tool_calls")
    calls = listed(message, "tool_calls", f"{where}.")
    return rollout_pb2.ChatMessage(
        role=_ROLES[message["role"]],
        content=_text(message.get("content"), f"{where}.content"),
        tool_calls=[_tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)],
        tool_call_id=str(message.get("tool_call_id") or ""),
        name=str(message.get("name") or ""),
    )


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(where, "must be a text or a list of parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise unsupported(where, f"parts of the type {kind!r:.40} cannot be read: the policy reads text")
    return "".join(part["text"] for part in content)


def _tool_call(call: Any, where: str) -> rollout_pb2.ToolCall:
    try:
        name, arguments = call["function"]["name"], call["function"].get("arguments") or "{}"
        if not isinstance(parse_json(arguments), dict):
            raise ValueError
        status, call_id = rollout_pb2.TOOL_CALL_STATUS_OK, str(call.get("id") or "")
        return rollout_pb2.ToolCall(id=call_id, name=name, arguments_json=arguments, status=status)
    except (KeyError, TypeError, ValueError, AttributeError):
        detail = "must be a call of a function, with its name and its arguments as a JSON object in a text"
        raise invalid(where, detail) from None


def _tool(tool: Any, where: str) -> pb.ToolDefinition:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise unsupported(where, "only tools of the type 'function' can be offered")
    try:
        function = tool["function"]
        described = pb.ToolDefinition(name=function["name"], description=function.get("description") or "")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        json_format.ParseDict(parameters, described.parameters)
        # A tool that the coordinator cannot read would fail the episode. It reads whole responses, whose nesting is
        # limited.
        response = pb.RunEpisodeResponse(call=pb.PolicyCall(tools=[described]))
        tool_from_wire(pb.RunEpisodeResponse.FromString(response.SerializeToString()).call.tools[0])
    except (
        KeyError, TypeError, AttributeError, OverflowError, json_format.ParseError, DecodeError, InvalidArgument
    ):  # fmt: skip
        detail = (
            f"{where}.function: must have a name, and parameters as a JSON schema without infinite numbers, NaN, and "
            "deep nesting"
        )
        raise Refused(400, "invalid_value", detail, where) from None
    return described


def chat_answer(answer: pb.PolicyAnswer, call_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of the response."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": _said(answer) | {"refusal": None},
        "finish_reason": _finish_reason(answer),
        "logprobs": token_logprobs(answer) if values.get("logprobs") else None,
    }
    return _head(answer, call_id, values, "chat.completion") | {"choices": [choice], "usage": usage(answer)}


def chat_chunks(answer: pb.PolicyAnswer, call_id: str, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the whole turn as the chunks of a stream."""
    head = _head(answer, call_id, values, "chat.completion.chunk")
    said = _said(answer)
    for index, call in enumerate(said.get("tool_calls", ())):
        call["index"] = index
    logprobs = token_logprobs(answer) if values.get("logprobs") else None
    yield head | {"choices": [{"index": 0, "delta": said, "logprobs": logprobs, "finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(answer)}]}
    if (values.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": usage(answer)}


def _said(answer: pb.PolicyAnswer) -> dict[str, Any]:
    message = answer.message
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
        for call in message.tool_calls
    ]
    said: dict[str, Any] = {"role": "assistant", "content": message.content or (None if calls else "")}
    return said | ({"tool_calls": calls} if calls else {})


def _finish_reason(answer: pb.PolicyAnswer) -> str:
    reason = finish_reason(answer)
    return "tool_calls" if reason == "stop" and answer.message.tool_calls else reason


def _head(answer: pb.PolicyAnswer, call_id: str, values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{call_id}",
        "object": kind,
        "created": int(time.time()),
        "model": str(values.get("model") or "policy"),
        "policy_version": answer.version.policy_version,
    }
