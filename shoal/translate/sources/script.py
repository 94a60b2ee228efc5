"""What a shell script says: its commands and variables."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """One word of a command."""

    text: str
    unknown: tuple[str, ...] = ()
    """Parts whose value only a run of the script could show: "$USER", "$(date)"."""


@dataclass
class Script:
    """The commands of a script, in order, and its variables."""

    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    """Variables whose value depends on an undecided test, and the value that was chosen."""
    used: set[str] = field(default_factory=set)
    """Variables that some command uses."""
    exported: dict[str, None] = field(default_factory=dict)
    """Variables of the environment of its commands, in the order of the script."""
    folder: str = ""
    """The folder of the script; empty if it is unknown."""
