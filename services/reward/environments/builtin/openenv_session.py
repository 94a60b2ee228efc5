"""A session with an OpenEnv server, over its WebSocket and without its package."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from services.reward.common.http_endpoint import EndpointFailed, HttpEndpoint
from services.reward.common.verdict import Unscorable
from shoal.config.tables.endpoint import EndpointConfig
from shoal.environment import Broken

_MAX_ANSWER_BYTES = 4 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 3.0
_SHOWN = 200


class Refused(Exception):
    """The server answered with an error, and the session continues. The message is the server's."""

    def __init__(self, why: str, code: str) -> None:
        super().__init__(why)
        self.code = code
        """VALIDATION_ERROR or EXECUTION_ERROR."""


class Session:
    """A connection with its own environment at the server. Belongs to one event loop."""

    def __init__(self, config: EndpointConfig, wait_s: float) -> None:
        """`wait_s` is the longest wait for a server whose sessions are all in use. Raises `InvalidArgument` if the
        key's environment variable is not set here."""
        self._endpoint = HttpEndpoint(
            config, "/schema", section="settings", server="the OpenEnv server", method="GET",
            expected="pair of JSON schemas, action and observation",
        )  # fmt: skip
        parts = urlsplit(config.base_url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        self._url = urlunsplit((scheme, parts.netloc, f"{parts.path}/ws", "", ""))
        self._timeout_s, self._wait_s = config.timeout_s, wait_s
        self._socket: Any = None

    async def schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the JSON schemas of actions and observations. Raises `Broken`."""
        try:
            return await self._endpoint.ask({}, _schemas_of)
        except (EndpointFailed, Unscorable) as error:
            raise Broken(str(error)) from None

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message of a kind ("reset" or "step"), and returns the data of the answer. Raises `Refused`, and
        `Broken` if there is no valid answer."""
        try:
            async with asyncio.timeout(self._wait_s) as waiting:
                pause_s = _FIRST_PAUSE_S
                while (answer := await self._exchanged(kind, data)) is None:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                waiting.reschedule(None)
        except TimeoutError:
            raise Broken(
                f"{self._url} had no place for another session within settings.wait_s ({self._wait_s:g} s): raise "
                "max_concurrent_envs of the server, or lower max_episodes of the environment"
            ) from None
        return answer

    async def close(self) -> None:
        """Ends the session, and with it the environment at the server."""
        await self._endpoint.close()
        await self._hang_up()

    async def _exchanged(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the data of the answer; None if the server has no place for the session."""
        from websockets.exceptions import WebSocketException

        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._raw_answer(json.dumps({"type": kind, "data": data}))
        except TimeoutError:
            raise Broken(
                f"{self._url} did not answer {kind!r} within settings.timeout_s ({self._timeout_s:g} s)"
            ) from None
        except (OSError, WebSocketException, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {str(error)[:_SHOWN]}"
            raise Broken(f"{self._url} gave no answer to {kind!r}: {why}") from None
        given = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(given, dict) or answer.get("type") not in ("observation", "error"):
            raise Broken(f"{self._url} answered {kind!r} with no observation: {str(answer)[:_SHOWN]}")
        if answer["type"] == "observation":
            return given
        why, code = str(given.get("message", ""))[:_SHOWN], str(given.get("code", ""))
        if code == "CAPACITY_REACHED":
            await self._hang_up()
            return None
        if code in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
            raise Refused(_reason(why, given.get("errors")), code)
        raise Broken(f"{self._url} answered {kind!r} with {code}: {why}")

    async def _raw_answer(self, message: str) -> Any:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            self._socket = await _connection(self._url, self._endpoint.key_headers)
        # A full server sends an error and closes before it gets a message.
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(message)
        return json.loads(await self._socket.recv())

    async def _hang_up(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


async def _connection(url: str, headers: Mapping[str, str]) -> Any:
    from websockets.asyncio.client import connect

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc  # Follow no redirects: the configuration decides where the key goes.

    # Accept no compression, since a small answer could fill the memory, and use no proxy of the environment.
    return await Connect(
        url, additional_headers=headers, compression=None, proxy=None, max_size=_MAX_ANSWER_BYTES, max_queue=1,
        close_timeout=1.0, ping_interval=None,
    )  # fmt: skip


def _schemas_of(answer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    action, observation = answer["action"], answer["observation"]
    if not isinstance(action, dict) or not isinstance(observation, dict):
        raise TypeError
    return action, observation


def _reason(why: str, errors: Any) -> str:
    """Returns the fault of an action, which is the first of pydantic's errors."""
    if not isinstance(errors, list) or not errors or not isinstance(errors[0], dict):
        return why
    place = ".".join(map(str, errors[0].get("loc") or ()))
    return f"{place}: {errors[0].get('msg', why)}" if place else str(errors[0].get("msg", why))
