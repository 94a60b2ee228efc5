"""The domain's errors.

All code of Shoal raises these errors. At the edge of a service, `shoal.rpc.errors` turns an error into a status with
details. At the client, `shoal.rpc.errors` turns the status back into an error of the same class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.error_reasons import ErrorReason


@dataclass(frozen=True)
class FieldViolation:
    """A fault of one field of a request or a configuration."""

    field: str
    """Dotted path of the field, for example "grpo.group_size"."""
    description: str
    """The fault, with the field's value and the correction."""


class ShoalError(Exception):
    """An error with a message for people and a reason for programs.

    `reason` is a value of `ErrorReason`, or a string that a peer of another version sent. `metadata` is for programs.
    """

    default_reason = ErrorReason.INTERNAL

    def __init__(self, message: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})


class InvalidArgument(ShoalError):
    """The request can never work."""

    default_reason = ErrorReason.INVALID_ARGUMENT

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.violations = tuple(violations)


class NotFound(ShoalError):
    """The named object does not exist."""

    default_reason = ErrorReason.NOT_FOUND


class AlreadyExists(ShoalError):
    """The object to create already exists."""

    default_reason = ErrorReason.ALREADY_EXISTS


class FailedPrecondition(ShoalError):
    """The state of the system does not allow the call; a retry alone does not help."""

    default_reason = ErrorReason.FAILED_PRECONDITION


class Aborted(ShoalError):
    """The work was abandoned; the caller must start it again."""

    default_reason = ErrorReason.ABORTED


class Unauthenticated(ShoalError):
    """The server does not know the caller: its credentials are missing or not valid."""

    default_reason = ErrorReason.UNAUTHENTICATED


class PermissionDenied(ShoalError):
    """The server knows the caller, but the caller's role does not allow the call."""

    default_reason = ErrorReason.PERMISSION_DENIED


class Retryable(ShoalError):
    """The obstacle may pass; `retry_after_s` is the time until a retry, in seconds, if known."""

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.retry_after_s = retry_after_s


class ResourceExhausted(Retryable):
    """A queue, a disk or memory is full. Retry after `retry_after_s`; None means that a retry does not help."""

    default_reason = ErrorReason.RESOURCE_EXHAUSTED


class Unavailable(Retryable):
    """The peer cannot be reached, or ended during the call; the same call may work later.

    `retry_after_s` is set if the peer itself names a time.
    """

    default_reason = ErrorReason.UNAVAILABLE


class DeadlineExceeded(ShoalError):
    """The deadline passed before the work was done."""

    default_reason = ErrorReason.DEADLINE_EXCEEDED


class DataLoss(ShoalError):
    """Bytes differ from what was written or sent."""

    default_reason = ErrorReason.DATA_LOSS


class Internal(ShoalError):
    """A defect in the service; its log has the details."""

    default_reason = ErrorReason.INTERNAL
