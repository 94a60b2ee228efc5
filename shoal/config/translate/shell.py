"""The commands of a shell script, with what its own assignments put into them.

Reads what launch scripts are made of: assignments, continued lines, comments, quotes, `$NAME`, `${NAME:-default}`,
`$((arithmetic))`, tests of what the script itself sets. It runs nothing: what only a shell could know (`$(command)`,
arguments, the environment) stays empty, as bash has it, and is remembered, so that whoever needs the value can say what
is missing. A branch whose test only a shell could know is taken, and what it sets is remembered as a guess.
"""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.config.translate.branches import Branches, is_test
from shoal.config.translate.parameters import cut

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_KEYWORDS = ("export", "readonly", "declare", "local", "typeset", "do", "{", *Branches.KEYWORDS)
_REDIRECTION = re.compile(r"&?[<>]{1,3}[&|-]?")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=$")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Word:
    """One word of a command."""

    text: str
    unknown: tuple[str, ...] = ()
    """What stands in it that only running the script would tell: "$USER", "$(date)"."""


@dataclass
class Script:
    """What a script runs, in order."""

    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    """Variables whose value depends on a test that cannot be told, and the value that was taken."""
    used: set[str] = field(default_factory=set)
    """Variables that were put in somewhere."""


def read_script(text: str) -> Script:
    """Reads a script; assignments take effect in their order. Loops and functions are read as if run once."""
    return _Reader(text.replace("\r\n", "\n")).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._script = Script(variables={"HOME": Word(str(Path.home()))})
        self._words: list[Word] = []
        self._parts: list[str] = []
        self._unknown: list[str] = []
        self._in_word = False
        self._assigns = False
        """Whether the word is an assignment, in which expansions are not split."""
        self._is_target = False
        """Whether the next word is where a redirection goes."""
        self._branches = Branches()

    def read(self) -> Script:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "\\":
                self._add(text[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "'":
                end = text.find("'", self._at + 1)
                end = len(text) if end < 0 else end
                self._add(text[self._at + 1 : end])
                self._at = end + 1
            elif char == '"':
                self._at += 1
                self._double_quoted()
            elif char == "$":
                self._expand(quoted=False)
            elif char == "`":
                end = text.find("`", self._at + 1)
                self._know_not(text[self._at : end + 1])
                self._at = len(text) if end < 0 else end + 1
            elif char == "#" and not self._in_word:
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif char in " \t":
                self._end_word()
                self._at += 1
            elif char == "(" and (array := _ARRAY.fullmatch("".join(self._parts))):
                self._read_array(array[1], appends=bool(array[2]))
            elif redirection := _REDIRECTION.match(text, self._at):
                self._redirect(redirection.end())
            elif char in "\n;&|()":
                joint = text[self._at : self._at + 2]
                joint = joint if joint in ("&&", "||", ";;") else char
                self._end_command(joint)
                self._at += len(joint)
            else:
                self._add(char)
                self._at += 1
        self._end_command("\n")
        return self._script

    def _read_array(self, name: str, *, appends: bool) -> None:
        """NAME=(words): its lines are one list, and comments in it are none of them."""
        end = _array_end(self._text, self._at)
        reader = _Reader(self._text[self._at + 1 : end - 1])
        reader._script = replace(self._script, commands=[])
        words = [word for command in reader.read().commands for word in command]
        self._script.arrays[name] = [*self._script.arrays.get(name, []), *words] if appends else words
        self._parts, self._unknown, self._in_word, self._assigns = [], [], False, False
        self._at = end

    def _redirect(self, end: int) -> None:
        """A redirection is no argument: neither its number before it nor its target behind."""
        if "".join(self._parts).isdigit():
            self._parts, self._unknown, self._in_word = [], [], False
        self._end_word()
        self._is_target = True
        self._at = end

    def _double_quoted(self) -> None:
        text = self._text
        self._in_word = True
        while self._at < len(text) and text[self._at] != '"':
            if text[self._at] == "\\" and text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._add("" if text[self._at + 1] == "\n" else text[self._at + 1])
                self._at += 2
            elif text[self._at] == "$":
                self._expand(quoted=True)
            else:
                self._add(text[self._at])
                self._at += 1
        self._at += 1

    def _expand(self, *, quoted: bool) -> None:
        text, start = self._text, self._at
        if text.startswith("$((", start):
            end = text.find("))", start)
            end = len(text) if end < 0 else end
            number = _arithmetic(text[start + 3 : end], self._script.variables)
            self._at = end + 2
            if number is None:
                self._know_not(text[start : self._at])
            else:
                self._add(str(number))
        elif text.startswith("$(", start):
            self._at = _closing(text, start + 1, "()")
            self._know_not(text[start : self._at])
        elif text.startswith("${", start):
            self._at = _closing(text, start + 1, "{}")
            self._insert(text[start + 2 : self._at - 1], quoted=quoted)
        elif name := _NAME.match(text, start + 1):
            self._at = name.end()
            self._insert(name[0], quoted=quoted)
        elif start + 1 < len(text) and text[start + 1] in "@*#?$!-0123456789":
            self._at = start + 2
            # "$@" without arguments is nothing at all.
            if text[start + 1] not in "@*":
                self._know_not(text[start : self._at])
        else:
            self._add("$")
            self._at += 1

    def _insert(self, inner: str, *, quoted: bool) -> None:
        """Puts in `${inner}`: a variable's value, or its default."""
        name = _NAME.match(inner)
        rest = inner[name.end() :] if name else inner
        if name and rest in ("[@]", "[*]") and name[0] in self._script.arrays:
            for index, word in enumerate(self._script.arrays[name[0]]):
                if index:
                    self._end_word()
                self._add(word.text)
                self._unknown.extend(word.unknown)
            return
        if name:
            self._script.used.add(name[0])
        known = self._script.variables.get(name[0]) if name else None
        if rest[:2] in (":-", ":=") or rest[:1] in ("-", "="):
            default = rest.lstrip(":")[1:]
            value = known if known is not None and known.text else _word_of(default, self._script)
            if name and "=" in rest[:2]:
                self._script.variables[name[0]] = value
        elif name and known is not None and (shortened := cut(known.text, rest)) is not None:
            value = Word(shortened, known.unknown)
        elif name and (element := re.fullmatch(r"\[(\d+)\]", rest)) and name[0] in self._script.arrays:
            items = self._script.arrays[name[0]]
            value = items[int(element[1])] if int(element[1]) < len(items) else Word("")
        elif not name and (match := re.match(r"\d+:?[-=](.*)", inner, re.DOTALL)):
            value = _word_of(match[1], self._script)
        elif rest or not name:
            value = Word("", (f"${{{inner}}}",))
        else:
            value = known if known is not None else Word("", (f"${name[0]}",))
        self._unknown.extend(value.unknown)
        if quoted or self._assigns:
            self._add(value.text)
            return
        # Outside quotes a value is split into words.
        pieces = value.text.split()
        for index, piece in enumerate(pieces):
            if index:
                self._end_word()
                self._unknown.extend(value.unknown)
            self._add(piece)
        if value.unknown and not pieces:
            self._in_word = True

    def _add(self, text: str) -> None:
        self._in_word = True
        self._parts.append(text)
        if not self._assigns and not self._takes_arguments():
            self._assigns = bool(_ASSIGNMENT.fullmatch("".join(self._parts)))

    def _takes_arguments(self) -> bool:
        return any(word.text not in _KEYWORDS and not word.text.startswith("-") for word in self._words)

    def _know_not(self, what: str) -> None:
        self._in_word = True
        self._unknown.append(what)

    def _end_word(self) -> None:
        if self._in_word:
            word = Word("".join(self._parts), tuple(dict.fromkeys(self._unknown)))
            # A word of nothing but an unset variable is no word to bash; it is kept for what it does not know.
            if not self._is_target:
                self._words.append(word)
            self._is_target = False
        self._parts, self._unknown, self._in_word, self._assigns = [], [], False, False

    def _end_command(self, ended_by: str) -> None:
        self._end_word()
        words, self._words, self._is_target = self._words, [], False
        while words and words[0].text in _KEYWORDS:
            is_told = len(words) > 1 and not words[1].unknown
            self._branches.turn(words[0].text, words[1].text if is_told else None)
            words = words[1:]
        known = not any(word.unknown for word in words)
        runs = self._branches.enter([word.text for word in words], ended_by, is_known=known)
        if runs is False and not (words and is_test(words[0].text)):
            return
        if len(words) >= 3 and words[0].text == "for" and words[2].text == "in":
            # A loop over one value is an assignment; over several, which one it is nobody can say.
            values = words[3:]
            several = Word("", (f"${words[1].text}, one of {len(values)} values of a loop",))
            self._script.variables[words[1].text] = values[0] if len(values) == 1 else several
            words = []
        while words and (match := _ASSIGNMENT.match(words[0].text)):
            name, value = match[1], Word(words[0].text[match.end() :], words[0].unknown)
            before = self._script.variables.get(name)
            if match[2] and before is not None:
                value = Word(before.text + value.text, before.unknown + value.unknown)
            self._script.guesses.pop(name, None)
            if runs is None and before is not None and before != value:
                self._script.guesses[name] = value.text
            self._script.variables[name] = value
            words = words[1:]
        if words:
            self._script.commands.append(words)


def _word_of(text: str, script: Script) -> Word:
    """A default inside `${NAME:-default}`, expanded."""
    reader = _Reader(f'"{text}"' if '"' not in text else text)
    reader._script = replace(script, commands=[])
    words = [word for command in reader.read().commands for word in command]
    return Word(" ".join(word.text for word in words), tuple(name for word in words for name in word.unknown))


def _closing(text: str, start: int, pair: str) -> int:
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == pair[0]) - (text[index] == pair[1])
        if depth == 0:
            return index + 1
    return len(text)


def _array_end(text: str, start: int) -> int:
    """The place behind the bracket that ends an array: not one in quotes, a comment, or an expansion."""
    at, depth = start, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = text.find(char, at + 1)
            if at < 0:
                break
        elif char == "#" and text[at - 1] in " \t\n(":
            at = text.find("\n", at)
            if at < 0:
                break
        depth += (char == "(") - (char == ")")
        at += 1
        if depth == 0:
            return at
    return len(text)


def _arithmetic(text: str, variables: dict[str, Word]) -> int | None:
    """The value of `$((text))`, None when it has something unknown in it."""
    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: _digits(variables.get(match[1])), text).strip()
    try:
        return _evaluate(ast.parse(plain.replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _digits(word: Word | None) -> str:
    return word.text if word is not None and not word.unknown else "unknown"


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    raise ValueError("not arithmetic")
