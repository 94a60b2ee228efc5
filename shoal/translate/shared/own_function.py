"""Functions in the source's own files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OwnFunction:
    """A function that a setting of the source names, and that the source's own file defines."""

    name: str
    file: str
    """The file, as an absolute path."""
    columns: tuple[str, ...]
    """Columns of the data that a reward function needs, as far as its source shows."""
    required: tuple[str, ...] = ()
    """The columns that are parameters. The function reads the others from its `**kwargs`."""
    optional: tuple[str, ...] = ()
    """Parameters with a default, which may also be columns."""
    takes_messages: bool = False
    """Whether a reward function reads completions as lists of messages, not as texts."""
    problem: str = ""
    """The reason why it cannot be loaded from its file; empty if it can."""
