"""The judge's server: a route with OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.common.http_endpoint import HttpEndpoint
from shoal.config.tables.judge import JudgeConfig


@dataclass(frozen=True)
class Reply:
    """A judge's reply."""

    text: str
    input_tokens: int
    output_tokens: int
    has_usage: bool
    """Whether the server reported how many tokens it used."""
    was_cut: bool
    """Whether the reply was cut at `max_tokens`."""


class Endpoint:
    """Asks a question per call. Calls run concurrently. Belongs to one event loop."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises `InvalidArgument` if the key's environment variable is not set here."""
        self._config = config
        self._http = HttpEndpoint(
            config, "/chat/completions", section="reward.judge", server="the judge", expected="chat completion"
        )

    @property
    def num_requests(self) -> int:
        """Requests sent, retries included."""
        return self._http.num_requests

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """Asks the judge. Raises `EndpointFailed`, and `Unscorable` if the server cannot take this question."""
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
    """Reads a chat completion. Raises LookupError, TypeError or ValueError for anything else."""
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str | None):
        raise ValueError("the content is not text")
    usage = answer.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    has_usage = all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
    num_read, num_written = counts if has_usage else (0, 0)
    return Reply(text or "", num_read or 0, num_written or 0, has_usage, choice.get("finish_reason") == "length")
