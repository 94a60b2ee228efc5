"""The contents of a shell script: its commands and variables."""

import re
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")


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
    """Variables whose value depends on an undecided test, and the chosen value."""
    used: set[str] = field(default_factory=set)
    """Variables that at least one command uses."""
    exported: dict[str, None] = field(default_factory=dict)
    """Environment variables of the script's commands, in the order of the script."""
    folder: str = ""
    """The folder of the script; empty if the folder is unknown."""

    def take(self, words: list[Word], *, exports: bool, is_guess: bool) -> None:
        """Takes the words of one command. A command may begin with assignments, or consist only of assignments."""
        assigned = []
        while words and (match := ASSIGNMENT.match(words[0].text) or words[0].text == "env"):
            if isinstance(match, re.Match):
                self._assign(match[1], words[0], appends=bool(match[2]), is_guess=is_guess)
                assigned.append(match[1])
            words = words[1:]
        if exports:
            self.exported |= dict.fromkeys([*assigned, *(word.text for word in words if NAME.fullmatch(word.text))])
        elif words:
            # Assignments before a command belong to its environment.
            self.exported |= dict.fromkeys(assigned)
            self.commands.append(words)

    def _assign(self, name: str, word: Word, *, appends: bool, is_guess: bool) -> None:
        value = Word(word.text.partition("=")[2], word.unknown)
        before = self.variables.get(name)
        if appends and before is not None:
            value = Word(before.text + value.text, tuple(dict.fromkeys(before.unknown + value.unknown)))
        self.guesses.pop(name, None)
        if is_guess and before is not None and before != value:
            self.guesses[name] = value.text
        self.variables[name] = value
