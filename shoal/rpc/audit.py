"""The record of calls that only operators may make: who made one, which, for which run, and what came of it.

It holds no contents of messages: they may be confidential.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from shoal.rpc.auth.callers import current_caller
from shoal.rpc.auth.permissions import ALLOWED, Caller, Role

_MAX_RUN_ID_CHARS = 100

AUDITED = frozenset(method for method, roles in ALLOWED.items() if roles == {Role.OPERATOR})
"""The calls that are recorded ("/package.Service/Method"). All of them are unary."""


@dataclass(frozen=True)
class OperatorCall:
    """A call that has ended."""

    rpc: str
    """Without its service: "StopRun"."""
    run_id: str
    """That of the request, else of the response; empty where neither names a run, and for a caller that is refused."""
    caller: Caller | None
    """None on a server that knows no callers, and for one that the server does not know."""
    peer: str
    """The caller's address, as gRPC writes it."""
    code: grpc.StatusCode

    @property
    def is_refused(self) -> bool:
        """Whether the caller may not make the call at all."""
        return self.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)

    def __str__(self) -> str:
        """Describes the call: "operator/anna called StopRun: OK"."""
        return f"{self.caller or f'a caller at {self.peer}'} called {self.rpc}: {self.code.name}"


Record: TypeAlias = Callable[[OperatorCall], None]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
"""Reads the request of a call."""
_Unary: TypeAlias = Callable[[Receive, Any], Awaitable[Any]]


def audited(unary: _Unary, method: str, record: Record) -> _Unary:
    """Returns the handler of a unary call that also records each call at its end."""

    async def call(receive: Receive, context: Any) -> Any:
        request: Any = None
        response: Any = None
        was_canceled = False

        async def receive_known() -> Any:
            nonlocal request
            request = await receive()
            return request

        try:
            response = await unary(receive_known, context)
            return response
        except asyncio.CancelledError:
            was_canceled = True  # The caller has gone.
            raise
        finally:
            run_id = "" if request is None else request.run_id
            record(
                OperatorCall(
                    method.rpartition("/")[2],
                    (run_id or _run_id_of(response))[:_MAX_RUN_ID_CHARS],
                    current_caller(),
                    context.peer(),
                    grpc.StatusCode.CANCELLED if was_canceled else context.code() or grpc.StatusCode.OK,
                )
            )

    return call


def _run_id_of(response: Any) -> str:
    return response.run.run_id if response is not None and "run" in response.DESCRIPTOR.fields_by_name else ""
