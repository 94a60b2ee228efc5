"""Paths as people write them into a configuration."""

from pathlib import Path

from shoal.errors import InvalidArgument


def local_path(text: str, field: str) -> Path:
    """The path with "~" expanded; whatever it names, or nothing, may be there.

    Raises `InvalidArgument` for a text that cannot be a path here: the home of an unknown user, a name that is too
    long, a folder that this user may not look into.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError) as error:
        raise InvalidArgument(f"{field}: {text!r:.100} is no path on this machine: {_why(error)}") from None
    return path


def _why(error: RuntimeError | OSError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "there is no such user, so ~ has no meaning; write the path out"
