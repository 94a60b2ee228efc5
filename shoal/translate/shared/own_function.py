"""Functions in the source's own files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OwnFunction:
    """A function that a setting of the source names and a file of its own defines."""

    name: str
    file: str
    """The file, as an absolute path."""
    columns: tuple[str, ...]
    """Columns of the data that a reward function needs, as far as its text shows."""
    required: tuple[str, ...] = ()
    """Those of them that are parameters; it reads the others from its `**kwargs`."""
    optional: tuple[str, ...] = ()
    """Parameters with a default, which may be columns as well."""
    takes_messages: bool = False
    """Whether a reward function reads completions as lists of messages, not as texts."""
    problem: str = ""
    """Why it cannot be loaded from there; empty if it can."""
