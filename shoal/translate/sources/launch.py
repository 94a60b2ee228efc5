"""The launch of a trainer in a script: its arguments, without the launcher around it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.translate.sources.script import Word
from shoal.translate.sources.shell import read_script

_KEYWORD = re.compile(r"[A-Za-z_]\w*=")
_LENGTHS = ("--total_episodes", "--max_steps", "--num_train_epochs")


@dataclass(frozen=True)
class Launch:
    """One start of a trainer."""

    program: str
    arguments: tuple[Word, ...]
    launcher: tuple[str, ...]
    """The words before the program, which are read by a launcher (mason.py, accelerate)."""
    guesses: tuple[str, ...] = ()
    """Variables whose value depends on an undecided test, each with the chosen value."""
    notes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment: the script's assignments, and the launcher's `--env NAME=VALUE`."""
    exported: tuple[str, ...] = ()
    """Environment variables that the script sets only for the trainer. The words of the script do not use these
    variables."""


def read_launch(text: str, programs: Sequence[re.Pattern[str]], *, path: Path) -> Launch:
    """Finds the launch of a program that matches one of `programs` in a script.

    Raises `InvalidArgument` if there is no launch, or if several launches have different settings.
    """
    script = read_script(text, path.parent)
    launches = [launch for command in script.commands for launch in _launches(command, programs)]
    if not launches:
        # In bash -c "the whole command" the command is one word.
        inner = [word.text for command in script.commands for word in command if " " in word.text.strip()]
        commands = [command for part in inner for command in read_script(part).commands]
        launches = [launch for command in commands for launch in _launches(command, programs)]
    if not launches:
        known = " or ".join(pattern.pattern for pattern in programs)
        words = [word.text for command in script.commands for word in command]
        other = next(
            (f"; if {word} does, translate that, with these flags after it" for word in words if _is_script(word)), ""
        )
        raise InvalidArgument(f"{path} starts no known trainer: none of its words matches {known}{other}")
    if len({_without_length(launch.arguments) for launch in launches}) > 1:
        raise InvalidArgument(
            f"{path} starts {len(launches)} trainers with different settings; give a script that starts one"
        )
    last = launches[-1]
    if any(launch.arguments != last.arguments for launch in launches):
        last = replace(last, notes=("the script runs the trainer again for longer: the last length counts",))
    guesses = [f"{name} = {value}" for name, value in script.guesses.items() if name in script.used]
    assigned = {name: word.text for name, word in script.variables.items() if not word.unknown}
    given = {
        word.partition("=")[0]: word.partition("=")[2] for flag, word in pairwise(last.launcher) if flag == "--env"
    }
    exported = [name for name in {**script.exported, **given} if name not in script.used]
    return replace(last, guesses=tuple(guesses), variables=assigned | given, exported=tuple(exported))


def _without_length(arguments: Sequence[Word]) -> tuple[Word, ...]:
    """Returns arguments without the length of the run. The length is left out because a script that resumes its run
    changes only the length."""
    return tuple(word for at, word in enumerate(arguments) if at == 0 or arguments[at - 1].text not in _LENGTHS)


def _is_script(word: str) -> bool:
    return word.endswith(".sh") and not word.startswith("-")


def _launches(command: Sequence[Word], programs: Sequence[re.Pattern[str]]) -> list[Launch]:
    """Finds the launches in a command, which may be a launcher with whole commands after its `--`."""
    found = []
    end = next((index for index, word in enumerate(command) if word.text == "--"), None)
    launcher = tuple(word.text for word in command[:end]) if end is not None else ()
    for part in [list(command)] if end is None else _joined(command[end + 1 :]):
        texts = [word.text for word in part]
        for index, text in enumerate(texts):
            # A program may be two words: "trl grpo".
            length = next((n for n in (1, 2) if _is_program(" ".join(texts[index : index + n]), programs)), 0)
            if length:
                found.append(Launch(text, tuple(part[index + length :]), (*launcher, *texts[:index])))
                break
    return found


def _is_program(text: str, programs: Sequence[re.Pattern[str]]) -> bool:
    return any(program.search(text) for program in programs if (" " in program.pattern) == (" " in text))


def _joined(words: Sequence[Word]) -> list[list[Word]]:
    """Splits the words after a launcher's `--` into commands at their operators, which are escaped for the launcher's
    shell."""
    parts: list[list[Word]] = [[]]
    for word in words:
        for index, piece in enumerate(re.split(r"&&|\|\|", word.text)):
            if index:
                parts.append([])
            if piece or (word.unknown and not word.text):
                parts[-1].append(Word(_unquoted(piece), word.unknown))
    return parts


def _unquoted(text: str) -> str:
    """Removes quotes around a whole word. Such quotes are for the launcher's shell: `--stop '"</answer>"'`."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


@dataclass(frozen=True)
class Arguments:
    """Command-line arguments by name."""

    values: dict[str, str | list[str] | bool]
    notes: list[str]
    unset: dict[str, tuple[str, ...]]
    """Arguments whose value needs variables that the script does not set. Each argument has the names of its missing
    variables."""


def read_flags(words: Sequence[Word], *, known: Sequence[str], flags: Sequence[str]) -> Arguments:
    """Reads `--name value...`, `--name=value`, `--name` and `--no_name` as argparse does, and `name=value` before
    these, as in the call of a configuration class.

    A name may be shortened to a prefix of a single known name. Names in `flags` may have the form `--no_name`, which
    the parsers of these systems accept for `--name false`. The last of several values counts.

    Raises `InvalidArgument` for a word that belongs to no name.
    """
    values: dict[str, str | list[str] | bool] = {}
    notes: list[str] = []
    unset: dict[str, tuple[str, ...]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text:
            continue
        if not word.text.startswith("--") and not _KEYWORD.match(word.text):
            raise InvalidArgument(f"{word.text!r} belongs to no flag: write --name VALUE or name=VALUE")
        spelled, equals, value = word.text.removeprefix("--").partition("=")
        name = spelled.replace("-", "_")
        items = [Word(value, word.unknown)] if equals else []
        while not equals and at < len(words) and not _is_flag(words[at].text):
            items.append(words[at])
            at += 1
        name = _whole(name, known)
        if name in values or name in unset:
            notes.append(f"--{name} is set more than once: the last value counts")
        values.pop(name, None)
        unset.pop(name, None)
        unknown = tuple(what for item in items for what in item.unknown)
        texts = [item.text for item in items if item.text or not item.unknown]
        if unknown and not any(texts):
            unset[name] = unknown
            continue
        if unknown:
            notes.append(f"--{name}: {', '.join(unknown)} is not set by the script, so it is empty, as in bash")
        if not items and name not in known and name.startswith("no_") and name[3:] in flags:
            values[name[3:]] = False
        elif not items:
            values[name] = True
        else:
            values[name] = texts[0] if len(texts) == 1 else texts
    return Arguments(values, notes, unset)


def _is_flag(text: str) -> bool:
    return text.startswith("--") and len(text) > 2 and not text[2].isdigit()


def _whole(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    longer = [other for other in known if other.startswith(name)]
    return longer[0] if len(longer) == 1 and len(name) > 2 else name
