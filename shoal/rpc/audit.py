"""The record of calls that only operators may make: the caller, the rpc, the run and the result.

The record has no contents of messages, since the contents may be confidential.
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
    """The name of the rpc, without the service: "StopRun"."""
    run_id: str
    """The id of the run, from the request or else from the response; empty if neither has it or the call is refused."""
    caller: Caller | None
    """The caller; None if the server does not know the caller, or does not check callers."""
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
