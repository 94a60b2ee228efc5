"""Translation between the errors of the domain and gRPC statuses, in both directions.

Reason and metadata are sent as `google.rpc.ErrorInfo` in the domain "shoal", violations as `BadRequest`, a delay as
`RetryInfo`, and the message as the status message. A status without these details, from another peer or from gRPC
itself (refused, timed out), becomes the matching error with a message that names the method and the address.
"""

import re
from itertools import islice
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Retryable,
    ShoalError,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "shoal"

TABLE: dict[type[ShoalError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    Aborted: grpc.StatusCode.ABORTED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    DataLoss: grpc.StatusCode.DATA_LOSS,
    Internal: grpc.StatusCode.INTERNAL,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
}

# Statuses that only gRPC, proxies and peers of another version send.
_OTHER_STATUSES: dict[grpc.StatusCode, type[ShoalError]] = {
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.UNIMPLEMENTED: FailedPrecondition,
}
_ERROR_OF_STATUS = {status: error for error, status in TABLE.items()} | _OTHER_STATUSES

_TOO_LARGE = re.compile(r"((?:CLIENT|SERVER): (?:Sent|Received)) message larger than max \(([0-9]+) vs\. ([0-9]+)\)")

_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"

# Bounds that keep the trailers, which contain the message twice, below MAX_METADATA_BYTES.
_MAX_MESSAGE_CHARS = 2000
_MAX_DETAILS = 32
_MAX_KEY_CHARS = 100
_MAX_VALUE_CHARS = 300


class Abort(NamedTuple):
    """The arguments of `grpc.aio.ServicerContext.abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_status(error: ShoalError) -> Abort:
    """Returns the status that a server sends instead of a response."""
    code = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), grpc.StatusCode.INTERNAL)
    message = _cut(error.message, _MAX_MESSAGE_CHARS)
    status = status_pb2.Status(code=code.value[0], message=message)
    metadata = {
        _cut(key, _MAX_KEY_CHARS): _cut(value, _MAX_VALUE_CHARS)
        for key, value in islice(error.metadata.items(), _MAX_DETAILS)
    }
    _pack(status, error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    trailers: list[tuple[str, str | bytes]] = []
    if isinstance(error, InvalidArgument) and error.violations:
        _pack(status, _bad_request(error))
    if isinstance(error, Retryable) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        _pack(status, retry)
        # A peer that restarts may return as another worker: the caller must get the error, without a retry by gRPC.
        pushback_ms = -1 if isinstance(error, Unavailable) else round(error.retry_after_s * 1e3)
        trailers.append((_PUSHBACK_KEY, str(pushback_ms)))
    trailers.append((_DETAILS_KEY, status.SerializeToString()))
    return Abort(code, message, tuple(trailers))


def internal_status(method: str) -> Abort:
    """Returns the status of a defect, without details, which may be confidential; the log has the details."""
    return to_status(
        Internal(f"{method} failed because of a defect in the service; the log of the service has the details")
    )


def from_rpc_error(error: grpc.aio.AioRpcError, *, method: str, address: str, timeout_s: float) -> ShoalError:
    """Returns the error to raise for a status that ended a call of `method` ("/package.Service/Method")."""
    kind = _ERROR_OF_STATUS.get(error.code(), Internal)
    status = _status_of(error)
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        # Unpack leaves the message empty when the detail is of another type.
        detail.Unpack(info) or detail.Unpack(bad_request) or detail.Unpack(retry)
    if info.domain != DOMAIN:
        return _without_details(kind, error, method, address, timeout_s)
    message, reason, metadata = status.message, info.reason, dict(info.metadata)
    translated: ShoalError
    if kind is InvalidArgument:
        violations = [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
        translated = InvalidArgument(message, reason=reason, metadata=metadata, violations=violations)
    elif issubclass(kind, Retryable):
        delay_s = retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None
        translated = kind(message, reason=reason, metadata=metadata, retry_after_s=delay_s)
    else:
        translated = kind(message, reason=reason, metadata=metadata)
    translated.add_note(f"answered by {address} to {method}")
    return translated


def _without_details(
    kind: type[ShoalError], error: grpc.aio.AioRpcError, method: str, address: str, timeout_s: float
) -> ShoalError:
    """Returns the error for a status that no Shoal service sent."""
    details = error.details() or error.code().name
    if kind is DeadlineExceeded:
        return DeadlineExceeded(f"{method} at {address} did not end within {timeout_s:g} s")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return FailedPrecondition(
            f"{address} does not offer {method}: the address serves another service, or another version of the service",
            reason=ErrorReason.UNIMPLEMENTED,
        )
    if too_large := _TOO_LARGE.search(details):
        part = "request" if too_large[1] in ("CLIENT: Sent", "SERVER: Received") else "answer"
        return ResourceExhausted(
            f"{method} at {address}: a message of the {part} has {too_large[2]} bytes, more than gRPC's limit of "
            f"{too_large[3]}; shorten prompts, completions (sampling.max_completion_tokens) or labels",
            reason=ErrorReason.MESSAGE_TOO_LARGE,
            metadata={"num_bytes": too_large[2], "max_bytes": too_large[3]},
        )
    if kind is Unavailable:
        return Unavailable(f"{method}: {address} cannot be reached, or ended during the call: {details}")
    return kind(f"{method} at {address} failed: {details}", reason=error.code().name)


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """Returns the status with details from the trailers; an empty status if the details are missing or unreadable."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status(code=code_pb2.UNKNOWN)


def _bad_request(error: InvalidArgument) -> error_details_pb2.BadRequest:
    bad_request = error_details_pb2.BadRequest()
    for violation in error.violations[:_MAX_DETAILS]:
        bad_request.field_violations.add(
            field=_cut(violation.field, _MAX_KEY_CHARS), description=_cut(violation.description, _MAX_VALUE_CHARS)
        )
    return bad_request


def _pack(status: status_pb2.Status, detail: Message) -> None:
    status.details.add().Pack(detail)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
