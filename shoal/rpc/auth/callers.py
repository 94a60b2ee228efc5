"""Checks each call: who calls, and whether this caller may call the method."""

from contextvars import ContextVar
from typing import Any

import grpc

from shoal.errors import PermissionDenied, Unauthenticated
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import ALLOWED, Caller, caller_of_uri

_SCHEME = "Bearer "
_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Returns who made the current call; None for an unknown caller, and on a server that does not check callers."""
    return _caller.get()


def authorize(method: str, context: "grpc.aio.ServicerContext[Any, Any]", credentials: Credentials) -> None:
    """Checks that the caller may call a method ("/package.Service/Method").

    Raises `Unauthenticated` for unknown callers, and `PermissionDenied` for callers whose role may not call the method.
    """
    if not credentials.knows_callers:
        return
    caller = _identify(context, credentials)
    _caller.set(caller)
    allowed = ALLOWED.get(method, frozenset())
    if caller.role not in allowed:
        roles = " or ".join(sorted(allowed)) or "nobody"
        raise PermissionDenied(
            f"{method} may be called only as {roles}, but the caller {caller.name!r} has the role {caller.role}",
            metadata={"method": method, "role": caller.role, "allowed": ",".join(sorted(allowed))},
        )


def _identify(context: "grpc.aio.ServicerContext[Any, Any]", credentials: Credentials) -> Caller:
    if credentials.tokens is None:
        uris = [uri.decode(errors="replace") for uri in context.auth_context().get("peer_uri", ())]
        caller = caller_of_uri(uris[0]) if len(uris) == 1 else None
        if caller is None:
            raise Unauthenticated(
                "the certificate names no role: it needs one URI spiffe://shoal/<role>/<name> with a role of "
                "coordinator, worker, operator or viewer"
            )
        return caller
    header = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), None)
    if not isinstance(header, str) or not header.startswith(_SCHEME):
        raise Unauthenticated("the call carries no token: send the metadata `authorization: Bearer TOKEN`")
    caller = credentials.tokens.caller(header.removeprefix(_SCHEME).strip())
    if caller is None:
        raise Unauthenticated("the token is not valid here: the server's --tokens-file does not have the token")
    return caller
