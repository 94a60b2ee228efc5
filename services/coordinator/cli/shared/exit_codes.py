"""Exit codes of `shoal`. docs/operations.md has the same table."""

from enum import IntEnum

from shoal.error_reasons import ErrorReason
from shoal.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ShoalError,
    Unauthenticated,
    Unavailable,
)


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    """Success."""
    FAILED = 1
    """The run failed, a process of the run died, `doctor` found something missing, or `reward score` found a failing
    verifier or no row with a reward."""
    USAGE = 2
    """The command line, the configuration or the data is not valid."""
    MISSING_EXTRA = 3
    """A package is not installed; the message names the extra that has the package."""
    NOT_FOUND = 4
    """The run does not exist."""
    PRECONDITION = 5
    """The command is not possible at present: a run is active, a port is in use, a disk is full, or a name is taken."""
    UNAVAILABLE = 6
    """The coordinator cannot be reached, or did not answer in time."""
    NOT_ALLOWED = 7
    """The coordinator does not know the caller, or the caller's role does not allow the command."""
    INTERRUPTED = 130
    """The command was ended by Ctrl-C, with a checkpoint if the time sufficed."""
    TERMINATED = 143
    """The command was ended by SIGTERM, with a checkpoint if the time sufficed."""


_BY_ERROR: dict[type[ShoalError], ExitCode] = {
    InvalidArgument: ExitCode.USAGE,
    NotFound: ExitCode.NOT_FOUND,
    AlreadyExists: ExitCode.PRECONDITION,
    FailedPrecondition: ExitCode.PRECONDITION,
    ResourceExhausted: ExitCode.PRECONDITION,
    Unavailable: ExitCode.UNAVAILABLE,
    DeadlineExceeded: ExitCode.UNAVAILABLE,
    Unauthenticated: ExitCode.NOT_ALLOWED,
    PermissionDenied: ExitCode.NOT_ALLOWED,
}


def exit_code_of(error: ShoalError) -> ExitCode:
    """Returns the exit code of a command that ends with this error."""
    if error.reason == ErrorReason.MISSING_EXTRA:
        return ExitCode.MISSING_EXTRA
    return next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), ExitCode.FAILED)
