"""A served model in the place of the policy, at an endpoint in the form of OpenAI's."""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import httpx2

from shoal.conversation import ChatMessage, ToolDefinition, openai_call, openai_tool
from shoal.errors import InvalidArgument, Unavailable

_TIMEOUT_S = 600.0
_MAX_SHOWN = 300


class ServedModel:
    """Asks a model for the next message of a conversation."""

    is_person = False

    def __init__(self, base_url: str, name: str, api_key_env: str, max_turns: int) -> None:
        """`base_url` is what comes before `/chat/completions`; without a name it is the first model that is listed
        there. Raises `InvalidArgument` for what cannot be used, `Unavailable` if nothing answers."""
        if not base_url.startswith(("http://", "https://")):
            raise InvalidArgument(f"--model must be an address such as http://127.0.0.1:8000/v1 (given: {base_url!r})")
        if api_key_env and not os.environ.get(api_key_env):
            raise InvalidArgument(f"--api-key-env {api_key_env}: there is no such environment variable, or it is empty")
        self._base_url, self._key = base_url.rstrip("/"), os.environ.get(api_key_env, "") if api_key_env else ""
        self.max_turns = max_turns
        self._name = name or self._first_name()

    async def say(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> str:
        """Returns what the model says, its tool calls in the form "hermes".

        Raises `InvalidArgument` for a refusal, `Unavailable` if nothing answers.
        """
        return await asyncio.to_thread(self._answer, messages, tools)

    def _answer(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> str:
        if not messages:
            raise InvalidArgument("a model needs something to answer: give --prompt what the policy reads first")
        body: dict[str, Any] = {"model": self._name, "messages": [_message(message) for message in messages]}
        if tools:
            body["tools"] = [openai_tool(tool) for tool in tools]
        answer = self._ask("chat/completions", body)
        try:
            said = answer["choices"][0]["message"]
            calls = [call["function"] for call in said.get("tool_calls") or ()]
            texts = [f'{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"]}}}' for call in calls]
        except (KeyError, IndexError, TypeError):
            raise Unavailable(f"{self._base_url} answered something else: {str(answer)[:_MAX_SHOWN]}") from None
        return (said.get("content") or "") + "".join(f"<tool_call>{text}</tool_call>" for text in texts)

    def _first_name(self) -> str:
        listed = self._ask("models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise InvalidArgument(f"{self._base_url}/models lists no model: give --model-name") from None

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"{self._base_url}/{path}"
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        method = "GET" if body is None else "POST"
        try:
            response = httpx2.request(method, url, json=body, headers=headers, timeout=_TIMEOUT_S)
            response.raise_for_status()
            return response.json()
        except httpx2.HTTPStatusError as error:
            said = error.response.text[:_MAX_SHOWN]
            raise InvalidArgument(f"{url} answered {error.response.status_code}: {said}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Unavailable(f"{url} does not answer: {error}") from None


def _message(message: ChatMessage) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [openai_call(call, call.arguments_json) for call in message.tool_calls]
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    return written
