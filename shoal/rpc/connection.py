"""A connection of a channel, with the credentials from its beginning."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc


class Connection:
    """A gRPC channel. It is closed when it is retired and its last call has ended."""

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self.inner = inner
        self._methods: dict[str, Any] = {}
        self._num_calls = 0
        self._is_retired = False
        self._closing: asyncio.Task[None] | None = None

    def start(self, method: str, make: Callable[[grpc.aio.Channel], Any], request: Any, **options: Any) -> Any:
        """Starts a call of a method. At the first call, `make` creates the method from the channel."""
        known = self._methods.get(method)
        if known is None:
            known = self._methods[method] = make(self.inner)
        call = known(request, **options)
        self._num_calls += 1
        call.add_done_callback(self._ended)
        return call

    def retire(self) -> None:
        """Takes no more calls, and lets current calls end."""
        self._is_retired = True
        self._close_if_idle()

    def _ended(self, _: Any) -> None:
        self._num_calls -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_retired and self._num_calls == 0:
            self._closing = asyncio.get_running_loop().create_task(self.inner.close())
