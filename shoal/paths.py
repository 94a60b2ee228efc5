"""Paths in a configuration."""

from pathlib import Path

from shoal.errors import InvalidArgument


def local_path(text: str, field: str) -> Path:
    """Returns the path with "~" expanded, whether or not it exists.

    Raises `InvalidArgument` for a text that cannot be a path on this machine: the home of an unknown user, a name that
    is too long, a folder that this user may not read.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError) as error:
        raise InvalidArgument(f"{field}: {text!r:.100} is not a path on this machine: {_why(error)}") from None
    return path


def _why(error: RuntimeError | OSError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "there is no such user for ~; write the full path"
