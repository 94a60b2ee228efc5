"""Paths of files that people name, and names of the folders that a run makes and deletes."""

import re
from pathlib import Path

from shoal.errors import InvalidArgument

_STEP_NAME = re.compile(r"step-[0-9]{8,}")


def step_name(step: int) -> str:
    """Returns the name of the folder of a step's checkpoint, or of its export."""
    return f"step-{step:08d}"


def is_step_name(name: str) -> bool:
    """Returns whether a name has the form of `step_name`. Other folders are not the run's, and may be copies."""
    return _STEP_NAME.fullmatch(name) is not None


def is_path(text: str) -> bool:
    """Returns whether a text is a path rather than a bare name: "runs/sums", "sums/", "..", "/"."""
    return text == ".." or text != Path(text).name


def local_path(text: str, field: str) -> Path:
    """Returns the path with "~" expanded, whether or not it exists.

    Raises `InvalidArgument` for a text that cannot be a path on this machine: the home of an unknown user, a name that
    is too long, a folder that this user may not read.
    """
    try:
        path = Path(text).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (RuntimeError, OSError, ValueError) as error:
        raise InvalidArgument(f"{field}: {text!r:.100} is not a path on this machine: {why_unread(error)}") from None
    return path


def why_unread(error: Exception) -> str:
    """Describes why a file cannot be read, for people who know the path. The text has no path and no error numbers."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"the file is not UTF-8 text (the first wrong byte is byte {error.start + 1})"
    return str(error)
