"""The client side of every service: one channel factory.

Credentials and authentication of clients belong here, those of servers in `interceptors` and `server`.
"""

from types import TracebackType
from typing import Any, Self, cast

import grpc

from shoal.rpc import options
from shoal.rpc.calls import Method
from shoal.rpc.retries import service_config


def connect(address: str, service_full_name: str) -> grpc.aio.Channel:
    """Opens a channel to the service ("shoal.v1.RewardService") at `address` ("host:port").

    The first call connects, and a lost connection is restored as often as necessary. Every call needs a `timeout`;
    ValueError names the method of a call without one. Stubs on the channel raise `shoal.errors`, for unary and
    streaming calls. Calls that are safe to retry are retried while the peer is UNAVAILABLE (`shoal.rpc.retries`).
    """
    settings = [*options.CLIENT, ("grpc.service_config", service_config(service_full_name))]
    return Channel(grpc.aio.insecure_channel(address, options=settings), address)


class Channel(grpc.aio.Channel):
    """A channel whose calls are `shoal.rpc.calls.Call`."""

    def __init__(self, inner: grpc.aio.Channel, address: str) -> None:
        self._inner = inner
        self._address = address

    # A `Method` has the interface of the gRPC class that the stub's type names.
    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> "grpc.aio.UnaryUnaryMultiCallable[Any, Any]":
        inner = self._inner.unary_unary(method, *args, **kwargs)
        return cast("grpc.aio.UnaryUnaryMultiCallable[Any, Any]", self._method(inner, method, False))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> "grpc.aio.UnaryStreamMultiCallable[Any, Any]":
        inner = self._inner.unary_stream(method, *args, **kwargs)
        return cast("grpc.aio.UnaryStreamMultiCallable[Any, Any]", self._method(inner, method, False))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> "grpc.aio.StreamUnaryMultiCallable[Any, Any]":
        inner = self._inner.stream_unary(method, *args, **kwargs)
        return cast("grpc.aio.StreamUnaryMultiCallable[Any, Any]", self._method(inner, method, True))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> "grpc.aio.StreamStreamMultiCallable[Any, Any]":
        inner = self._inner.stream_stream(method, *args, **kwargs)
        return cast("grpc.aio.StreamStreamMultiCallable[Any, Any]", self._method(inner, method, True))

    def _method(self, inner: Any, method: str, streams_requests: bool) -> Method:
        return Method(inner, method=method, address=self._address, streams_requests=streams_requests)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
