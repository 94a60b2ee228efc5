"""One attempt at a call: messages in order each way, and a status at the end, unless the connection breaks before."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import grpc

from tests.simulation.network.weather import Break, Weather
from tests.simulation.virtual_time import CURRENT, Process

Metadata = tuple[tuple[str, str | bytes], ...]
_END = object()
_ORDER_S = 1e-6
"""Between two messages of a stream: timers of one moment have no order."""


@dataclass(frozen=True)
class Status:
    code: grpc.StatusCode
    details: str = ""
    trailers: Metadata = ()


UNREACHABLE = Status(grpc.StatusCode.UNAVAILABLE, "failed to connect: Connection refused")
BROKEN = Status(grpc.StatusCode.UNAVAILABLE, "Socket closed")


class Exchange:
    """The two ends of one attempt. Each end calls only its own methods."""

    def __init__(self, weather: Weather, client: Process | None, server: Process, metadata: Metadata) -> None:
        self.client, self.server = client, server
        self.metadata = metadata
        self.on_response: Callable[[bytes], None] = lambda _: None
        self.on_status: Callable[[Status], None] = lambda _: None
        self.handling: asyncio.Task[None] | None = None
        self.breaks_at = weather.breaks()
        self._weather = weather
        self._loop = asyncio.get_running_loop()
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._last_up = self._last_down = 0.0
        self._has_ended = self._is_broken = False
        self._on_end: Callable[[], object] = lambda: None
        if self.breaks_at is Break.MIDDLE:
            self._later(weather.rng.expovariate(1 / 0.5), self.break_off)

    def accept_later(self, accept: Callable[[], None], on_end: Callable[[], object]) -> None:
        """Calls `accept` when the call reaches the server, and `on_end` when it has ended for its client."""
        self._on_end = on_end
        self._up(lambda: None if self._is_broken else accept())

    # The client's end.

    def send(self, request: bytes) -> None:
        self._up(self._requests.put_nowait, request)

    def half_close(self) -> None:
        self._up(self._requests.put_nowait, _END)

    def cancel(self) -> None:
        """Lets the server know that nobody waits any more."""
        self._has_ended = True
        self._on_end()
        self._up(self._cancel_handling)

    # The server's end.

    async def requests(self) -> AsyncIterator[bytes]:
        while (request := await self._requests.get()) is not _END:
            yield request

    def respond(self, response: bytes) -> None:
        self._down(lambda: None if self._has_ended else self.on_response(response))

    def finish(self, status: Status) -> None:
        self._down(self._end, BROKEN if self.breaks_at is Break.ANSWER else status)

    # The connection.

    def break_off(self) -> None:
        """Breaks the connection: both ends find out."""
        self._is_broken = True
        self._down(self._end, BROKEN)
        self._up(self._cancel_handling)

    def _end(self, status: Status) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end()
            self.on_status(status)

    def _cancel_handling(self) -> None:
        if self.handling is not None:
            self.handling.cancel()

    def _up(self, deliver: Callable[..., object], *arguments: Any) -> None:
        at = self._weather.passes_at(self.client, self.server, self._loop.time())
        self._last_up = max(self._last_up + _ORDER_S, at)
        self._loop.call_at(self._last_up, deliver, *arguments, context=self._context(self.server))

    def _down(self, deliver: Callable[..., object], *arguments: Any) -> None:
        at = self._weather.passes_at(self.server, self.client, self._loop.time())
        self._last_down = max(self._last_down + _ORDER_S, at)
        self._loop.call_at(self._last_down, deliver, *arguments, context=self._context(self.client))

    def _later(self, delay_s: float, work: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, work, context=Context())

    @staticmethod
    def _context(process: Process | None) -> Context:
        context = Context()
        context.run(CURRENT.set, process)
        return context
