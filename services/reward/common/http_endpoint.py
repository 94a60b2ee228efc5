"""JSON requests over HTTP, with retries, deadlines and errors that name the setting to change.

The `openai` client would not save code: it does not know /classify, does not limit the time of all attempts or the size
of a reply, follows redirects (with the key), does not retry a 200 without an answer, and its errors name no setting.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from types import MappingProxyType
from typing import Any, Literal, NoReturn, TypeVar

import httpx2

from services.reward.common.verdict import Unscorable
from shoal.config.tables.endpoint import EndpointConfig
from shoal.errors import InvalidArgument

# The same request may succeed later, as after any server error (500 and above).
_TRANSIENT = frozenset({408, 409, 425, 429})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_MAX_REPLY_BYTES = 4 << 20
_SHOWN = 160
# Parts of the error messages of OpenAI, vLLM, SGLang, llama.cpp and others.
_TOO_LONG = (
    "context_length_exceeded",
    "context length",
    "context size",
    "context window",
    "maximum model length",
    "prompt is too long",
)

T = TypeVar("T")


class EndpointFailed(Exception):
    """The server gave no answer. The message says why."""

    def __init__(self, why: str, *, status: int | None = None) -> None:
        """`status` is the status of a refusal, which a retry does not change; None if the server may answer later."""
        super().__init__(why)
        self.status = status


class _Transient(Exception):
    """A failure after which a retry may succeed."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class HttpEndpoint:
    """A client for one route. Calls run concurrently. Belongs to one event loop."""

    def __init__(
        self,
        config: EndpointConfig,
        route: str,
        *,
        section: str,
        server: str,
        expected: str,
        method: Literal["POST", "GET"] = "POST",
        key_header: str = "Authorization",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """For messages, `section` is the table of the settings, `server` names the server, and `expected` describes a
        good answer. A GET sends the body as the query. The key goes as a bearer token, or alone in another header.

        Raises `InvalidArgument` if the key's environment variable is not set here.
        """
        self._config = config
        self._section, self._server, self._expected = section, server, expected
        self._key = self._key_of_environment()
        value = f"Bearer {self._key}" if key_header == "Authorization" else self._key
        self.key_headers = {key_header: value} if self._key else {}
        """The header that carries the key; empty without a key."""
        # Use no proxies or credentials of the environment: the configuration decides where requests go.
        self._client = httpx2.AsyncClient(
            # Accept no compression: a small reply could fill the memory.
            headers={"Accept-Encoding": "identity", **headers, **self.key_headers},
            trust_env=False,
            timeout=httpx2.Timeout(config.timeout_s),
            limits=httpx2.Limits(
                max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent
            ),
        )
        self._url, self._method = f"{config.base_url}{route}", method

    def _key_of_environment(self) -> str:
        name = self._config.api_key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise InvalidArgument(
                f"{self._section}.api_key_env: the environment of this reward service has no {name}; set it to "
                f"{self._server}'s key where the service is started, or unset api_key_env"
            )
        if not key.isascii() or not key.isprintable():
            raise InvalidArgument(
                f"{self._section}.api_key_env: the value of {name} cannot be sent in a header; set it to "
                f"{self._server}'s key, of plain ASCII"
            )
        return key

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Sends `body` until there is an answer, at most `max_attempts` times. Returns `read` of the answer's JSON.

        `read` raises LookupError, TypeError, ValueError or AttributeError for anything but a good answer. Raises
        `EndpointFailed` without an answer, and `Unscorable` if this question is too long for the server.
        """
        config = self._config
        why = ""
        limit = f"{self._section}.total_timeout_s ({config.total_timeout_s:g} s)"
        try:
            async with asyncio.timeout(config.total_timeout_s) as whole:
                for attempt in range(1, config.max_attempts + 1):
                    try:
                        return self._read(await self._ask_once(body), read)
                    except _Transient as error:
                        why = f"{error} (attempt {attempt} of {config.max_attempts})"
                        if attempt == config.max_attempts:
                            break
                        pause_s = _pause_s(attempt, error.retry_after_s)
                        if asyncio.get_running_loop().time() + pause_s >= (whole.when() or 0.0):
                            why += f"; the next attempt, after {pause_s:g} s, would exceed {limit}"
                            break
                        await asyncio.sleep(pause_s)
        except TimeoutError:
            why = f"no answer within {limit}; last failure: {why or 'none'}"
        raise EndpointFailed(why)

    async def _ask_once(self, body: Mapping[str, Any]) -> bytes:
        timeout_s = self._config.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                status, headers, content = await self._post(body)
        except TimeoutError:
            raise _Transient(f"no reply from {self._url} within {self._section}.timeout_s ({timeout_s:g} s)") from None
        except httpx2.TimeoutException:
            raise _Transient(f"{self._url} was silent for {timeout_s:g} s") from None
        except httpx2.RequestError as error:
            raise _Transient(
                f"{self._url} cannot be reached: {type(error).__name__}: {self._safe(str(error))}; start "
                f"{self._server}, or correct {self._section}.base_url"
            ) from None
        if status != 200:
            self._refuse(status, headers, content)
        return content

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, httpx2.Headers, bytes]:
        sent: dict[str, Any] = {"json": body} if self._method == "POST" else {"params": body}
        async with self._client.stream(self._method, self._url, **sent) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.lower() != "identity":
                raise EndpointFailed(f"{self._url} encoded its answer as {encoding[:_SHOWN]!r} without being asked to")
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > _MAX_REPLY_BYTES:
                    raise EndpointFailed(f"the reply of {self._url} is longer than {_MAX_REPLY_BYTES >> 20} MiB")
            return response.status_code, response.headers, bytes(content)

    def _refuse(self, status: int, headers: httpx2.Headers, content: bytes) -> NoReturn:
        body = self._safe(content.decode("utf-8", "replace"))
        if status == 413 or (status == 400 and any(words in body.lower() for words in _TOO_LONG)):
            raise Unscorable(f"{self._server} reports that the question is too long: {body[:_SHOWN]}")
        why = f"{self._url} answered {status}: {body[:_SHOWN]}"
        if 300 <= status < 400:
            target = self._safe(headers.get("location", "nowhere"))[:_SHOWN]
            why = (
                f"{self._url} answered {status} and points to {target}; redirects are not followed: set "
                f"{self._section}.base_url to the server's address"
            )
        if status in (401, 403):
            why += f"; {self._cure_of_key()}"
        if status == 404:
            why += f"; the server has no such route, or no such model: correct {self._section}"
        if status in _TRANSIENT or status >= 500:
            raise _Transient(why, _retry_after_s(headers.get("retry-after")))
        raise EndpointFailed(why, status=status)

    def _cure_of_key(self) -> str:
        name = self._config.api_key_env
        if name:
            cure = "start the service with another key"
            return f"the server refuses the key in {name} ({self._section}.api_key_env): {cure}"
        return f"the server requires a key: set {self._section}.api_key_env to the environment variable that has it"

    def _read(self, content: bytes, read: Callable[[Any], T]) -> T:
        try:
            return read(json.loads(content))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
            body = self._safe(content.decode("utf-8", "replace"))[:_SHOWN]
            raise _Transient(f"{self._url} answered 200 without a {self._expected}: {body!r}") from None

    def _safe(self, text: str) -> str:
        """Removes the key, in case a server repeats it."""
        return text.replace(self._key, "***") if self._key else text


def _pause_s(attempt: int, retry_after_s: float | None) -> float:
    """Returns the pause that the server asks for, or a pause that doubles with each attempt. A random part keeps
    questions from being retried all at once."""
    if retry_after_s is not None:
        return max(retry_after_s, 0.0) * random.uniform(1.0, 1.2)
    return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)


def _retry_after_s(header: str | None) -> float | None:
    """Returns the seconds of a Retry-After header, which is a number or a date; None without the header."""
    if not header:
        return None
    try:
        return float(header) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - time()
    except (ValueError, OverflowError, OSError):
        return None
