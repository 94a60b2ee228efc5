"""Decides which commands of a shell script run, as far as its tests can be evaluated."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_BRACKETS = {"[": "]", "[[": "]]"}


@dataclass
class _Branch:
    is_testing: bool
    holds: bool | None = None
    """Whether the current part runs; None if only a shell could know."""
    has_run: bool | None = False
    """Whether an earlier part of the `if` or `case` ran."""
    tests: int = 0
    is_case: bool = False
    subject: str | None = None
    """The word that a `case` compares; None if the word is unknown."""
    has_head: bool = False
    awaits_pattern: bool = False
    matches: bool = False
    """Whether one of the patterns before the bracket matches."""


class Branches:
    """Follows `if`, `case`, `&&` and `||` through a script."""

    KEYWORDS = ("if", "elif", "then", "else", "fi", "case", "esac")

    def __init__(self) -> None:
        self._open: list[_Branch] = []
        self._gate: bool | None = True
        """Whether the next command runs, given the previous one and the operator between them."""

    def turn(self, keyword: str, following: str | None) -> None:
        """Opens, continues or closes a branch at a keyword; `following` is the word after it."""
        if keyword == "if":
            self._open.append(_Branch(is_testing=True))
        if keyword == "case":
            self._open.append(_Branch(is_testing=False, holds=False, is_case=True, subject=following))
        if not self._open:
            return
        branch = self._open[-1]
        if keyword == "then":
            branch.is_testing = False
        elif keyword in ("elif", "else"):
            branch.has_run = _either(branch.has_run, branch.holds)
            branch.holds = None if branch.has_run is None else not branch.has_run
            branch.is_testing, branch.tests = keyword == "elif", 0
        elif keyword in ("fi", "esac"):
            self._open.pop()

    def enter(self, command: Sequence[str], ended_by: str, *, is_known: bool) -> bool | None:
        """Returns whether a command runs; None if only a shell could know. `ended_by` is the operator after it."""
        if self._open and self._open[-1].is_case and self._reads_pattern(self._open[-1], command, ended_by):
            return False
        gate, runs = self._gate, self._gate
        for branch in self._open:
            runs = _both(runs, True if branch.is_testing else branch.holds)
        if not command:
            return runs
        outcome = holds(command) if is_known else None
        if self._open and self._open[-1].is_testing:
            self._test(self._open[-1], outcome)
        # A command that is not a test is assumed to succeed.
        status = _both(gate, outcome if is_test(command[0]) else True)
        self._gate = status if ended_by == "&&" else True
        if ended_by == "||" and is_test(command[0]):
            self._gate = None if status is None else not status
        return runs

    @staticmethod
    def _reads_pattern(branch: _Branch, command: Sequence[str], ended_by: str) -> bool:
        """Returns whether the command is the head or a pattern of a `case`, not a command to run."""
        if ended_by == ";;" and not branch.awaits_pattern:
            branch.has_run = _either(branch.has_run, branch.holds)
            branch.awaits_pattern = True
            return not command
        if not branch.has_head and "in" in command:
            # The first pattern may be on the line of the head.
            branch.has_head = branch.awaits_pattern = True
            command = command[command.index("in") + 1 :]
        if not branch.awaits_pattern:
            return False
        if command and ended_by in ("|", ")"):
            branch.matches |= branch.subject is not None and fnmatchcase(branch.subject, command[-1])
        if command and ended_by == ")":
            runs = None if branch.subject is None else branch.matches
            branch.holds = _both(None if branch.has_run is None else not branch.has_run, runs)
            branch.awaits_pattern, branch.matches = False, False
        return True

    @staticmethod
    def _test(branch: _Branch, outcome: bool | None) -> None:
        branch.tests += 1
        outcome = outcome if branch.tests == 1 else None
        branch.holds = _both(None if branch.has_run is None else not branch.has_run, outcome)


def is_test(word: str) -> bool:
    """Returns whether a command of this name is a test."""
    return word == "test" or word in _BRACKETS


def holds(command: Sequence[str]) -> bool | None:
    """Returns whether `[ a = b ]`, `[[ ... ]]` or `test ...` is true; None if only a run could show it."""
    if command[0] != "test" and command[-1] != _BRACKETS.get(command[0]):
        return None
    words = list(command[1:] if command[0] == "test" else command[1:-1])
    is_negated = bool(words) and words[0] == "!"
    outcome = _outcome(words[1:] if is_negated else words, has_patterns=command[0] == "[[")
    return outcome if outcome is None or not is_negated else not outcome


def _outcome(words: Sequence[str], *, has_patterns: bool) -> bool | None:
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, how, right = words
    if how in ("=", "==", "!="):
        if has_patterns and any(char in right for char in "*?["):
            return None
        return (left == right) == (how != "!=")
    if how in _NUMBERS:
        try:
            return _NUMBERS[how](int(left), int(right))
        except ValueError:
            return None
    return None


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return None if one is None or other is None else False
