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
    """A package is not installed; the message names its extra."""
    NOT_FOUND = 4
    """There is no such run."""
    PRECONDITION = 5
    """Not possible in the present state: a run is active, a port is in use, a disk is full, a name is taken."""
    UNAVAILABLE = 6
    """The coordinator cannot be reached, or did not answer in time."""
    NOT_ALLOWED = 7
    """The coordinator does not know the caller, or the caller's role does not allow the command."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, with a checkpoint if there was time for one."""
    TERMINATED = 143
    """Ended by SIGTERM, with a checkpoint if there was time for one."""


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
