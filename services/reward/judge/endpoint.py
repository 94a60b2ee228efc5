"""A server with OpenAI's chat completions."""

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, NoReturn

import httpx2

from services.reward.verdict import Unscorable
from shoal.config.judge import JudgeConfig
from shoal.errors import InvalidArgument

# Busy, broken for now, or too slow: the same request may succeed later.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_MOST_REPLY_BYTES = 4 << 20
_SHOWN = 160


class JudgeFailed(Exception):
    """The judge could not be asked. The message says why."""


class _Passing(Exception):
    """As `JudgeFailed`, but worth another attempt."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


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
        self._key = ""
        headers = {}
        if config.api_key_env:
            self._key = os.environ.get(config.api_key_env, "").strip()
            if not self._key:
                raise InvalidArgument(
                    f"reward.judge.api_key_env: the environment of this reward service has no {config.api_key_env}; "
                    "set it to the judge's key where the service is started, or unset api_key_env"
                )
            if not self._key.isascii() or not self._key.isprintable():
                raise InvalidArgument(
                    f"reward.judge.api_key_env: what {config.api_key_env} holds cannot stand in a header; set it to "
                    "the judge's key, of plain ASCII"
                )
            headers["Authorization"] = f"Bearer {self._key}"
        # No proxies or credentials from the surroundings: the configuration says where questions go.
        self._client = httpx2.AsyncClient(
            headers=headers,
            trust_env=False,
            timeout=httpx2.Timeout(config.timeout_s),
            limits=httpx2.Limits(
                max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent
            ),
        )
        self._url = f"{config.base_url}/chat/completions"
        self.num_requests = 0
        """Requests sent, repeated ones too."""

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """The reply, after as many attempts as allowed.

        Raises `JudgeFailed`, and `Unscorable` when it is this question that the server cannot take.
        """
        config = self._config
        why = ""
        try:
            async with asyncio.timeout(config.total_timeout_s):
                for attempt in range(1, config.max_attempts + 1):
                    try:
                        return await self._ask_once(messages)
                    except _Passing as error:
                        why = f"{error} (attempt {attempt} of {config.max_attempts})"
                        if attempt < config.max_attempts:
                            await asyncio.sleep(_pause_s(attempt, error.retry_after_s))
        except TimeoutError:
            why = (
                f"no verdict within reward.judge.total_timeout_s ({config.total_timeout_s:g} s); last: {why or 'none'}"
            )
        raise JudgeFailed(why)

    async def _ask_once(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        config = self._config
        body: dict[str, Any] = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        if config.json_mode:
            body["response_format"] = {"type": "json_object"}
        self.num_requests += 1
        try:
            async with asyncio.timeout(config.timeout_s):
                status, headers, content = await self._post(body)
        except TimeoutError:
            raise _Passing(
                f"no reply from {self._url} within reward.judge.timeout_s ({config.timeout_s:g} s)"
            ) from None
        except httpx2.TimeoutException:
            raise _Passing(f"{self._url} was silent for {config.timeout_s:g} s") from None
        except httpx2.RequestError as error:
            raise _Passing(f"{self._url} cannot be reached: {type(error).__name__}: {self._safe(str(error))}") from None
        if status != 200:
            self._refuse(status, headers, content)
        return self._reply(content)

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, httpx2.Headers, bytes]:
        async with self._client.stream("POST", self._url, json=body) as response:
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > _MOST_REPLY_BYTES:
                    raise JudgeFailed(f"the reply of {self._url} is longer than {_MOST_REPLY_BYTES >> 20} MiB")
            return response.status_code, response.headers, bytes(content)

    def _refuse(self, status: int, headers: httpx2.Headers, content: bytes) -> NoReturn:
        said = self._safe(content.decode("utf-8", "replace"))
        if status == 413 or (status == 400 and _is_too_long(said)):
            raise Unscorable(f"the judge says that the question is too long for it: {said[:_SHOWN]}")
        why = f"{self._url} answered {status}: {said[:_SHOWN]}"
        if status in _PASSING:
            raise _Passing(why, _retry_after_s(headers.get("retry-after")))
        raise JudgeFailed(why)

    def _reply(self, content: bytes) -> Reply:
        try:
            answer = json.loads(content)
            choice = answer["choices"][0]
            text = choice["message"]["content"]
        except (ValueError, RecursionError, LookupError, TypeError):
            said = self._safe(content.decode("utf-8", "replace"))[:_SHOWN]
            raise _Passing(f"{self._url} answered 200 with no chat completion: {said!r}") from None
        if not isinstance(text, str | None):
            raise _Passing(f"{self._url} answered 200 with content that is no text")
        usage = answer.get("usage")
        counts = [
            usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")
        ]
        has_usage = all(isinstance(count, int) and count >= 0 for count in counts)
        taken, given = counts if has_usage else (0, 0)
        return Reply(text or "", taken or 0, given or 0, has_usage, choice.get("finish_reason") == "length")

    def _safe(self, text: str) -> str:
        """Without the key, should a server repeat it."""
        return text.replace(self._key, "***") if self._key else text


def _is_too_long(said: str) -> bool:
    said = said.lower()
    return "context_length_exceeded" in said or "maximum context length" in said or "context window" in said


def _pause_s(attempt: int, retry_after_s: float | None) -> float:
    """Doubles with each attempt, less a random part so that questions do not come back together."""
    grown = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
    return grown if retry_after_s is None else max(min(retry_after_s, _LONGEST_PAUSE_S), 0.0)


def _retry_after_s(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or a date."""
    if not header:
        return None
    try:
        return float(header) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - time()
    except (ValueError, OverflowError, OSError):
        return None
