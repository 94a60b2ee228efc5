"""The client side of every service: one channel factory."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.network import host_of, is_loopback
from shoal.rpc import options
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.tls import WORKER_NAME, TlsFiles
from shoal.rpc.calls import Method
from shoal.rpc.retries import service_config

_COORDINATOR = "shoal.v1.CoordinatorService"


def connect(address: str, service_full_name: str, credentials: auth.Credentials | None = None) -> grpc.aio.Channel:
    """Opens a channel to the service ("shoal.v1.RewardService") at `address` ("host:port").

    The first call connects, and a lost connection is restored as often as necessary. A call without a `timeout` raises
    ValueError, which names the method. Stubs on the channel raise `shoal.errors`, for unary and streaming calls. Calls
    that are safe to retry are retried while the peer is UNAVAILABLE (`shoal.rpc.retries`).

    `credentials` are by default the credentials of the process. Under TLS a coordinator's certificate must name the
    host of `address`, and a worker's must name WORKER_NAME. New calls use renewed certificates and tokens.

    Raises `FailedPrecondition` (CREDENTIALS) if a token would leave this machine without TLS.
    """
    credentials = auth.current() if credentials is None else credentials
    if credentials.token is not None and credentials.tls is None and not is_loopback(host_of(address)):
        raise FailedPrecondition(
            f"the token is sent only over TLS, and {address} is another machine: set SHOAL_TLS_DIR or --tls-dir to a "
            "folder with its ca.crt, or unset the token",
            reason=ErrorReason.CREDENTIALS,
        )
    settings = [*options.CLIENT, ("grpc.service_config", service_config(service_full_name))]
    if credentials.tls is not None and service_full_name != _COORDINATOR:
        settings.append(("grpc.ssl_target_name_override", WORKER_NAME))
    return Channel(address, settings, credentials)


class Connection:
    """A gRPC channel with fixed credentials. The channel closes when it is retired and its last call has ended."""

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
        """Accepts no more calls, and lets current calls end."""
        self._is_retired = True
        self._close_if_idle()

    def _ended(self, _: Any) -> None:
        self._num_calls -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_retired and self._num_calls == 0:
            self._closing = asyncio.get_running_loop().create_task(self.inner.close())


class Channel(grpc.aio.Channel):
    """A channel whose calls are `shoal.rpc.calls.Call`. A change of certificates makes a new connection."""

    def __init__(self, address: str, settings: options.Options, credentials: auth.Credentials) -> None:
        self._address = address
        self._settings = settings
        self._credentials = credentials
        self._files: TlsFiles | None = None
        self._connection = self._open()

    # A `Method` has the interface of the gRPC class that the stub's type names.
    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method(method, lambda inner: inner.unary_unary(method, *args, **kwargs), streams_requests=False)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method(method, lambda inner: inner.unary_stream(method, *args, **kwargs), streams_requests=False)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method(method, lambda inner: inner.stream_unary(method, *args, **kwargs), streams_requests=True)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method(method, lambda inner: inner.stream_stream(method, *args, **kwargs), streams_requests=True)

    def _method(self, method: str, make: Callable[[grpc.aio.Channel], Any], *, streams_requests: bool) -> Method:
        def start(request: Any, *, metadata: tuple[tuple[str, str | bytes], ...], **call_options: Any) -> Any:
            return self._current().start(method, make, request, metadata=(*metadata, *self._token()), **call_options)

        return Method(start, method=method, address=self._address, streams_requests=streams_requests)

    def _token(self) -> tuple[tuple[str, str], ...]:
        token = self._credentials.token
        return () if token is None else (("authorization", f"Bearer {token.value()}"),)

    def _current(self) -> Connection:
        """Returns the connection for a new call. The connection is new if the certificates have changed."""
        if self._credentials.tls is not None and self._credentials.tls.current() is not self._files:
            self._connection.retire()
            self._connection = self._open()
        return self._connection

    def _open(self) -> Connection:
        if self._credentials.tls is not None:
            self._files = self._credentials.tls.current()
            security = self._files.channel_credentials()
        elif self._credentials.token is not None:
            # This is plaintext, and refuses a peer on another machine.
            security = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        else:
            return Connection(grpc.aio.insecure_channel(self._address, options=self._settings))
        return Connection(grpc.aio.secure_channel(self._address, security, options=self._settings))

    async def close(self, grace: float | None = None) -> None:
        await self._connection.inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._connection.inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._connection.inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._connection.inner.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
