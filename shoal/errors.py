"""The errors of the domain.

Code raises these; `shoal.rpc.errors` turns them into a status with details at the edge of a service, and back
into the same classes at the client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldViolation:
    """What is wrong with one field of a request or a configuration."""

    field: str
    """Dotted path, for example "grpo.group_size"."""
    description: str
    """What is wrong, with the value, and what would be right."""


class ShoalError(Exception):
    """An error with a message for people and a reason for programs.

    `reason` is in UPPER_SNAKE and stays the same over releases; `metadata` holds what a program may want to
    read, as strings.
    """

    default_reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})


class InvalidArgument(ShoalError):
    """The caller asked for something that can never work."""

    default_reason = "INVALID_ARGUMENT"

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
    """What was named does not exist."""

    default_reason = "NOT_FOUND"


class AlreadyExists(ShoalError):
    """What was to be made exists."""

    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(ShoalError):
    """The system is not in a state for this; repeating the call does not help."""

    default_reason = "FAILED_PRECONDITION"


class Aborted(ShoalError):
    """The work was given up and has to be started afresh by the caller."""

    default_reason = "ABORTED"


class Retryable(ShoalError):
    """What stands in the way may pass; `retry_after_s` says when to try again, where that is known."""

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
    """A queue or a disk is full. `retry_after_s` says when to try again, None that it does not help."""

    default_reason = "RESOURCE_EXHAUSTED"


class Unavailable(Retryable):
    """The peer cannot be reached, or went away; the same call may work later.

    `retry_after_s` says when, where the peer itself says so.
    """

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(ShoalError):
    """It was not done in time."""

    default_reason = "DEADLINE_EXCEEDED"


class DataLoss(ShoalError):
    """Bytes are not what they should be."""

    default_reason = "DATA_LOSS"


class Internal(ShoalError):
    """A defect on the other side; its log says which."""

    default_reason = "INTERNAL"
