"""The server side of every service: one gRPC server."""

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.network import holder_of, host_of, is_loopback, is_wildcard
from shoal.rpc import options
from shoal.rpc.audit import Record
from shoal.rpc.auth import credentials as auth
from shoal.rpc.interceptors import ServiceInterceptor
from shoal.rpc.limits import ServerLimits
from shoal.rpc.signals import RESTART_SIGNAL
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

Serving = health_pb2.HealthCheckResponse

_PROBE_S = 0.5
_WARN_S = 1.0


class RpcServer:
    """A gRPC server with health, reflection, channelz, and the interceptor of all services.

    Health of "" is SERVING while the process is alive. The health of a service's full name follows `set_serving`.
    Servicers raise `shoal.errors`; streaming handlers are async generators. `limits` bounds what callers use at once.

    `credentials`, by default the credentials of the process, decide who may connect, and which methods a caller may
    call (shoal/rpc/auth/permissions.py). Everyone who can connect may ask for health.

    Example:
        server = RpcServer(listen="127.0.0.1:0")
        server.add(add_RewardServiceServicer_to_server, servicer, "shoal.v1.RewardService")
        await server.start()
        await server.set_serving("shoal.v1.RewardService", True)
        await server.serve_until_stopped()
    """

    def __init__(
        self,
        *,
        listen: str,
        limits: ServerLimits | None = None,
        credentials: auth.Credentials | None = None,
        allow_wildcard_address: bool = False,
        audit: Record | None = None,
    ) -> None:
        """`audit` gets every call that only operators may make, at its end."""
        self._listen = listen
        self._credentials = auth.current() if credentials is None else credentials
        self._allow_wildcard_address = allow_wildcard_address
        self._limits = limits or ServerLimits()
        self._audit = audit
        self._services: list[tuple[Callable[[Any, grpc.aio.Server], None], Any, str]] = []
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self._lag_watch: asyncio.Task[None] | None = None

    def add(self, add_to_server: Callable[[Any, grpc.aio.Server], None], servicer: Any, service_full_name: str) -> None:
        """Adds a service, before `start`. The service is NOT_SERVING until `set_serving`."""
        self._services.append((add_to_server, servicer, service_full_name))

    @property
    def port(self) -> int:
        """The port of the server; 0 before `open`."""
        return self._port

    async def open(self) -> None:
        """Opens the port, after all services are added. Clients that connect wait until `start`.

        Raises FailedPrecondition (PORT_IN_USE, CREDENTIALS). Raises InvalidArgument for an address that this machine
        does not have, and for the wildcard address unless the wildcard address is allowed.
        """
        self._check_address()
        interceptor = ServiceInterceptor(self._credentials, self._limits, self._audit)
        settings = options.SERVER if self._credentials.tls is None else options.SERVER_WITH_TLS
        server = grpc.aio.server(interceptors=[interceptor], options=[*settings, *self._limits.options()])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        channelz.add_channelz_servicer(server)
        reflected = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        for add_to_server, servicer, service_full_name in self._services:
            add_to_server(servicer, server)
            await self.set_serving(service_full_name, False)
            reflected.append(service_full_name)
        reflection.enable_server_reflection(reflected, server)
        try:
            self._port = self._add_port(server)
        except RuntimeError as error:
            raise _listen_error(self._listen) from error
        self._server = server

    async def start(self) -> None:
        """Opens the port, if the port is not open yet, and starts to serve. Raises the errors of `open`."""
        if self._server is None:
            await self.open()
        assert self._server is not None
        await self._server.start()
        self._lag_watch = asyncio.create_task(watch_lag())

    def _check_address(self) -> None:
        host = host_of(self._listen)
        if is_wildcard(host) and not self._allow_wildcard_address:
            raise InvalidArgument(
                f"--listen {self._listen} means every interface of this machine: name the address of one interface, or "
                "add --allow-wildcard-address if the network around the machine is private"
            )
        if is_loopback(host) or self._credentials.tls is not None:
            return
        if self._credentials.tokens is not None:
            raise FailedPrecondition(
                f"--tokens-file is given without --tls-dir, but on {self._listen} tokens would travel in plaintext; "
                "add --tls-dir, or listen on 127.0.0.1",
                reason=ErrorReason.CREDENTIALS,
            )
        _log.warning("everybody on the network may call this service: set --tls-dir", extra={"listen": self._listen})

    def _add_port(self, server: grpc.aio.Server) -> int:
        tls = self._credentials.tls
        if tls is None:
            return server.add_insecure_port(self._listen)
        credentials = tls.server_credentials(ask_for_certificates=self._credentials.tokens is None)
        return server.add_secure_port(self._listen, credentials)

    async def set_serving(self, service_full_name: str, serving: bool) -> None:
        """Sets the health of one service, or of the process if the name is ""."""
        await self._health.set(service_full_name, Serving.SERVING if serving else Serving.NOT_SERVING)

    async def serve_until_stopped(
        self, grace_s: float = 10.0, before_stop: Callable[[], Awaitable[None]] | None = None
    ) -> int:
        """Serves until SIGTERM, SIGINT or RESTART_SIGNAL, then sets NOT_SERVING, awaits `before_stop`, and stops.

        Calls are served until `before_stop` returns. A second SIGTERM or SIGINT ends the process with 128 + its number.

        Returns the first signal.
        """
        loop = asyncio.get_running_loop()
        signaled = asyncio.Event()
        received: list[int] = []

        # loop.add_signal_handler loses a queued signal when the handler is replaced, and waits while the loop blocks.
        def stop(number: int, _frame: object) -> None:
            if not received and not loop.is_closed():
                received.append(number)
                loop.call_soon_threadsafe(signaled.set)
            elif number != RESTART_SIGNAL:
                os._exit(128 + number)

        for number in (signal.SIGTERM, signal.SIGINT, RESTART_SIGNAL):
            signal.signal(number, stop)
        await signaled.wait()
        _log.info("draining", extra={"grace_s": grace_s})
        await self._health.enter_graceful_shutdown()
        if before_stop is not None:
            await before_stop()
        await self.stop(grace_s)
        return received[0]

    async def stop(self, grace_s: float) -> None:
        """Sets NOT_SERVING, refuses new calls, and gives calls in flight `grace_s` seconds to finish."""
        await self._health.enter_graceful_shutdown()
        if self._lag_watch is not None:
            self._lag_watch.cancel()
        if self._server is not None:
            await self._server.stop(grace_s)


def _listen_error(listen: str) -> FailedPrecondition | InvalidArgument:
    """Returns why the port cannot be opened. gRPC does not tell, so this function opens the port itself."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return InvalidArgument(
                f"cannot listen on {listen}: {error.strerror}; give host:port of an address of this machine"
            )
    return FailedPrecondition(
        f"cannot listen on {listen}: port {port} is in use {holder_of(int(port))}; stop that process, or set another "
        "port, or 0 for a free port",
        reason=ErrorReason.PORT_IN_USE,
        metadata={"listen": listen, "port": port},
    )


async def watch_lag() -> None:
    """Measures the lag of the loop forever. Warns above one second: the loop then runs work that needs a thread."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(_PROBE_S)
        lag_s = time.monotonic() - began - _PROBE_S
        metrics.histogram(names.LOOP_LAG).record(max(lag_s, 0.0))
        if lag_s > _WARN_S:
            _log.warning("event loop was blocked", extra={"lag_s": round(lag_s, 3)})
