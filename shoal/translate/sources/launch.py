"""The launch of a trainer in a script: its arguments, without the launcher around it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.translate.sources.script import Word
from shoal.translate.sources.settings import Settings
from shoal.translate.sources.shell import read_script

_KEYWORD = re.compile(r"[A-Za-z_]\w*=")
_LENGTHS = ("--total_episodes", "--max_steps", "--num_train_epochs")


@dataclass(frozen=True)
class Launch:
    """One start of a trainer."""

    program: str
    arguments: tuple[Word, ...]
    launcher: tuple[str, ...]
    """The words before the program, which a launcher reads (mason.py, accelerate)."""
    guesses: tuple[str, ...] = ()
    """Variables whose value depends on an undecided test, each with the chosen value."""
    notes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment: the script's assignments, and the launcher's `--env NAME=VALUE`."""
    exported: tuple[str, ...] = ()
    """Environment variables that no word of the script uses, so that only the trainer may read them."""


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
        inner = [word for word in words if word.endswith(".sh") and not word.startswith("-")]
        other = f"if {inner[0]} does, translate it, with these flags after it" if inner else "give the script that does"
        raise InvalidArgument(f"{path} starts no known trainer: none of its words matches {known}; {other}")
    # A script that resumes its run changes only the length.
    if len({_without_length(launch.arguments) for launch in launches}) > 1:
        reason = f"starts {len(launches)} trainers with different settings; give a script that starts one"
        raise InvalidArgument(f"{path} {reason}")
    last = launches[-1]
    if any(launch.arguments != last.arguments for launch in launches):
        last = replace(last, notes=("the script starts the trainer again with another length: the last one is used",))
    guesses = [f"{name} = {value}" for name, value in script.guesses.items() if name in script.used]
    assigned = {name: word.text for name, word in script.variables.items() if not word.unknown}
    given = dict(word.partition("=")[::2] for flag, word in pairwise(last.launcher) if flag == "--env")
    exported = [name for name in {**script.exported, **given} if name not in script.used]
    return replace(last, guesses=tuple(guesses), variables=assigned | given, exported=tuple(exported))


def _without_length(arguments: Sequence[Word]) -> tuple[Word, ...]:
    return tuple(word for at, word in enumerate(arguments) if at == 0 or arguments[at - 1].text not in _LENGTHS)


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
    """Splits the words after a launcher's `--` into commands at their escaped operators."""
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


def read_flags(words: Sequence[Word], *, known: Sequence[str], flags: Sequence[str]) -> Settings:
    """Reads `--name value...`, `--name=value` and `--name` as argparse does. Before these, it also reads `name=value`,
    as in the call of a configuration class. If a name is given several times, the last value counts.

    A name may be shortened to a prefix of a single known name. Names in `flags` may have the form `--no_name`, which
    means `--name false`. Raises `InvalidArgument` for a word that belongs to no name.
    """
    settings, at = Settings(), 0
    values, unset = settings.values, settings.unset
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
            settings.notes.append(f"--{name} is set more than once: the last value counts")
        values.pop(name, None)
        unset.pop(name, None)
        unknown = ", ".join(what for item in items for what in item.unknown)
        texts = [item.text for item in items if item.text or not item.unknown]
        if unknown and not any(texts):
            unset[name] = f"has no value: the script uses {unknown}, which it does not set"
            continue
        if unknown:
            settings.notes.append(f"--{name}: {unknown} is not set by the script, so it is empty, as in bash")
        if not items and name not in known and name.startswith("no_") and name[3:] in flags:
            values[name[3:]] = False
        else:
            values[name] = (texts[0] if len(texts) == 1 else texts) if items else True
    return settings


def _is_flag(text: str) -> bool:
    return text.startswith("--") and len(text) > 2 and not text[2].isdigit()


def _whole(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    longer = [other for other in known if other.startswith(name)]
    return longer[0] if len(longer) == 1 and len(name) > 2 else name
