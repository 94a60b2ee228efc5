"""A server with OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.http_endpoint import HttpEndpoint
from shoal.config.judge import JudgeConfig


@dataclass(frozen=True)
class Reply:
    """What the judge wrote."""

    text: str
    input_tokens: int
    output_tokens: int
    has_usage: bool
    """Whether the server said how many tokens it took."""
    was_cut: bool
    """It ended at `max_tokens`."""


class Endpoint:
    """Asks one question at a time per call; calls run beside each other. Belongs to one event loop."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises `InvalidArgument` when the key's environment variable is not set here."""
        self._config = config
        self._http = HttpEndpoint(
            config, "/chat/completions", section="reward.judge", who="the judge", expected="chat completion"
        )

    @property
    def num_requests(self) -> int:
        """Requests sent, repeated ones too."""
        return self._http.num_requests

    async def close(self) -> None:
        """Ends the connections."""
        await self._http.close()

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """The reply, after as many attempts as allowed.

        Raises `EndpointFailed`, and `Unscorable` when it is this question that the server cannot take.
        """
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": list(messages),
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
        }
        if self._config.json_mode:
            body["response_format"] = {"type": "json_object"}
        return await self._http.ask(body, _reply)


def _reply(answer: Any) -> Reply:
    """Raises LookupError, TypeError or ValueError for what is no chat completion."""
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str | None):
        raise ValueError("the content is no text")
    usage = answer.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    has_usage = all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
    taken, given = counts if has_usage else (0, 0)
    return Reply(text or "", taken or 0, given or 0, has_usage, choice.get("finish_reason") == "length")
