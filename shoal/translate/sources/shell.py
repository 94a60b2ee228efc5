"""Reads the commands of a shell script, with the values of its own assignments filled in.

Nothing is executed: a value that only a shell knows (`$(command)`, arguments, the environment) is empty, as in bash,
and is recorded, so that an error can name it. A branch whose test only a shell could decide is taken, and each variable
that it sets is recorded as a guess.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.translate.sources.branches import Branches, is_test
from shoal.translate.sources.expansion import arithmetic, array_end, closing, cut, folder_named, probed
from shoal.translate.sources.script import ASSIGNMENT, NAME, Script, Word

_DECLARATIONS = ("export", "readonly", "declare", "local", "typeset")
_KEYWORDS = (*_DECLARATIONS, "do", "{", *Branches.KEYWORDS)
_REDIRECTION = re.compile(r"&?[<>]{1,3}[&|-]?")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=$")
_ELEMENT = re.compile(r"\[(\d+)\]")
_ALL_WORDS = re.compile(r"\$\{([A-Za-z_]\w*)\[@\]\}")
_INDIRECT = re.compile(r"!([A-Za-z_]\w*)")
_MAX_NAME_PARTS = 256
_MAX_WORD_CHARS, _MAX_WORDS = 1 << 20, 100_000
"""Limits of a word and a script. A variable that is appended to itself doubles with each line."""
_ARGUMENT_DEFAULT = re.compile(r"\d+:?[-=](.*)", re.DOTALL)


def read_script(text: str, folder: Path | None = None) -> Script:
    """Reads a script in a folder; assignments take effect in order. Reads loops and functions as if they ran once."""
    where = str(folder.absolute()) if folder is not None else ""
    script = Script(variables={"HOME": Word(str(Path.home())), "PWD": Word(".")}, folder=where)
    return _Reader(text.replace("\r\n", "\n"), script).read()


class _Reader:
    """Reads one text character by character into the commands of a script."""

    def __init__(self, text: str, script: Script, *, only_words: bool = False) -> None:
        """`only_words` reads a list of words without assignments or keywords."""
        self._text = text
        self._only_words = only_words
        self._at = 0
        self._script = script
        self._words: list[Word] = []
        self._parts: list[str] = []
        self._unknown: list[str] = []
        self._in_word = False
        self._assigns = False
        """Whether the word is an assignment, which is not split."""
        self._is_target = False
        """Whether the next word is the target of a redirection."""
        self._branches = Branches()
        self._arrays: dict[str, list[Word]] = {}
        """Arrays that the command assigns if it runs."""

    def read(self) -> Script:
        """Reads to the end of the text."""
        while self._at < len(self._text):
            _HANDLERS.get(self._text[self._at], _Reader._plain)(self)
        self._end_command("\n")
        return self._script

    def _plain(self) -> None:
        self._add(self._text[self._at])
        self._at += 1

    def _escape(self) -> None:
        if not self._text.startswith("\\\n", self._at):
            self._add(self._text[self._at + 1 : self._at + 2])
        self._at += 2

    def _single_quoted(self) -> None:
        end = self._find("'", self._at + 1)
        self._add(self._text[self._at + 1 : end])
        self._at = end + 1

    def _backquoted(self) -> None:
        end = self._find("`", self._at + 1)
        self._add_unknown(self._text[self._at : end + 1])
        self._at = end + 1

    def _comment(self) -> None:
        if self._in_word:
            self._plain()
        else:
            self._at = self._find("\n", self._at)

    def _blank(self) -> None:
        self._end_word()
        self._at += 1

    def _bracket(self) -> None:
        if array := _ARRAY.fullmatch("".join(self._parts)):
            self._read_array(array[1], appends=bool(array[2]))
        else:
            self._operator()

    def _redirection(self) -> None:
        """Skips a redirection. Neither the number before it nor the target after it is an argument."""
        match = _REDIRECTION.match(self._text, self._at)
        if match is None:
            self._operator()
            return
        if "".join(self._parts).isdigit():
            self._parts, self._unknown, self._in_word = [], [], False
        self._end_word()
        self._is_target = True
        self._at = match.end()

    def _operator(self) -> None:
        pair = self._text[self._at : self._at + 2]
        operator = pair if pair in ("&&", "||", ";;") else pair[0]
        self._end_command(operator)
        self._at += len(operator)

    def _find(self, text: str, start: int) -> int:
        index = self._text.find(text, start)
        return len(self._text) if index < 0 else index

    def _read_array(self, name: str, *, appends: bool) -> None:
        """Reads NAME=(words), which may have several lines and comments between them."""
        end = array_end(self._text, self._at)
        words = _words_of(self._text[self._at + 1 : end - 1], self._script)
        before = self._arrays.get(name) or self._script.arrays.get(name, [])
        self._arrays[name] = [*before, *words] if appends else words
        self._parts, self._unknown, self._in_word, self._assigns = [], [], False, False
        self._at = end

    def _double_quoted(self) -> None:
        text, start, was_in_word = self._text, self._at + 1, self._in_word
        self._in_word = True
        self._at += 1
        while self._at < len(text) and text[self._at] != '"':
            if text[self._at] == "\\" and text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._add("" if text[self._at + 1] == "\n" else text[self._at + 1])
                self._at += 2
            elif text[self._at] == "$":
                self._expand(quoted=True)
            else:
                self._add(text[self._at])
                self._at += 1
        if self._is_no_word(text[start : self._at]):
            self._in_word = was_in_word
        self._at += 1

    def _is_no_word(self, quoted: str) -> bool:
        """Returns whether a text in quotes stands for all of no words: `"$@"` without arguments, or an empty array."""
        array = _ALL_WORDS.fullmatch(quoted)
        return quoted in ("$@", "${@}") or (array is not None and self._script.arrays.get(array[1]) == [])

    def _expand(self, *, quoted: bool = False) -> None:
        text, start = self._text, self._at
        if text.startswith("$((", start):
            self._at = closing(text, start + 1, "()")
            known = {name: word.text for name, word in self._script.variables.items() if not word.unknown}
            number = arithmetic(text[start + 3 : self._at - 2], known)
            if number is None:
                self._add_unknown(text[start : self._at])
            else:
                self._add(str(number))
        elif text.startswith("$(", start):
            self._at = closing(text, start + 1, "()")
            self._substitute(text[start + 2 : self._at - 1])
        elif text.startswith("${", start):
            self._at = closing(text, start + 1, "{}")
            self._insert(text[start + 2 : self._at - 1], quoted=quoted)
        elif name := NAME.match(text, start + 1):
            self._at = name.end()
            self._insert(name[0], quoted=quoted)
        elif start + 1 < len(text) and text[start + 1] in "@*#?$!-0123456789":
            self._at = start + 2
            # "$@" without arguments is nothing at all.
            if text[start + 1] not in "@*":
                self._add_unknown(text[start : self._at])
        else:
            self._add("$")
            self._at += 1

    def _substitute(self, command: str) -> None:
        """Reads `$(command)`. Only a run knows its value, unless the command names a folder or is a probe."""
        if (folder := folder_named(command, self._script.folder)) is not None:
            self._add(folder)
        elif (word := probed(command)) is not None:
            self._add(word)
            self._script.guesses[f"$({command})"] = word
            self._script.used.add(f"$({command})")
        else:
            self._add_unknown(f"$({command})")

    def _insert(self, inner: str, *, quoted: bool) -> None:
        """Inserts `${inner}`: the value of a variable, or its default."""
        match = NAME.match(inner)
        name, rest = (match[0], inner[match.end() :]) if match else ("", inner)
        if rest in ("[@]", "[*]") and name in self._script.arrays:
            self._script.used.add(name)
            for index, word in enumerate(self._script.arrays[name]):
                if index:
                    self._end_word()
                self._add(word.text)
                self._unknown.extend(word.unknown)
            return
        if name:
            self._script.used.add(name)
        self._insert_value(self._value(name, rest, inner), quoted=quoted)

    def _value(self, name: str, rest: str, inner: str) -> Word:
        """Returns the value of `${inner}`, which is a name (or "") and the rest."""
        unknown = Word("", (f"${{{inner}}}",))
        if pointer := _INDIRECT.fullmatch(inner):
            target = self._script.variables.get(pointer[1], Word(""))
            return self._script.variables.get(target.text, unknown)
        known = self._script.variables.get(name)
        if rest[:2] in (":-", ":=") or rest[:1] in ("-", "="):
            default = rest.lstrip(":")[1:]
            value = known if known is not None and known.text else _word_of(default, self._script)
            if name and "=" in rest[:2]:
                self._script.variables[name] = value
            return value
        if name and (rest[:2] == ":+" or rest[:1] == "+"):
            return _word_of(rest.lstrip(":")[1:], self._script) if known is not None and known.text else Word("")
        if not name:
            match = _ARGUMENT_DEFAULT.match(inner)
            return _word_of(match[1], self._script) if match else unknown
        if known is not None and (shortened := cut(known.text, rest)) is not None:
            return Word(shortened, known.unknown)
        if (element := _ELEMENT.fullmatch(rest)) and name in self._script.arrays:
            items = self._script.arrays[name]
            return items[int(element[1])] if int(element[1]) < len(items) else Word("")
        if rest:
            return unknown
        return known if known is not None else Word("", (f"${name}",))

    def _insert_value(self, value: Word, *, quoted: bool) -> None:
        self._unknown.extend(value.unknown)
        if quoted or self._assigns:
            self._add(value.text)
            return
        # Outside quotes the shell splits a value into words.
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
        may_assign = text.endswith("=") and len(self._parts) <= _MAX_NAME_PARTS
        if may_assign and not (self._assigns or self._only_words or self._takes_arguments()):
            self._assigns = bool(ASSIGNMENT.fullmatch("".join(self._parts)))

    def _takes_arguments(self) -> bool:
        return any(word.text not in _KEYWORDS and not word.text.startswith("-") for word in self._words)

    def _add_unknown(self, what: str) -> None:
        self._in_word = True
        self._unknown.append(what)

    def _end_word(self) -> None:
        if self._in_word:
            word = Word("".join(self._parts), tuple(dict.fromkeys(self._unknown)))
            if len(word.text) > _MAX_WORD_CHARS or len(self._words) > _MAX_WORDS:
                raise InvalidArgument(
                    f"a word of the script has more than {_MAX_WORD_CHARS} characters, or a command more than "
                    f"{_MAX_WORDS} words: give a script whose variables stay shorter"
                )
            # bash drops a word that is only an unset variable. Keep it here to name the variable.
            if not self._is_target:
                self._words.append(word)
            self._is_target = False
        self._parts, self._unknown, self._in_word, self._assigns = [], [], False, False

    def _end_command(self, ended_by: str) -> None:
        self._end_word()
        words, self._words, self._is_target = self._words, [], False
        arrays, self._arrays = self._arrays, {}
        if self._only_words:
            self._script.commands.append(words)
            return
        exports = False
        while words and words[0].text in _KEYWORDS:
            keyword = words[0].text
            is_known = len(words) > 1 and not words[1].unknown
            self._branches.turn(keyword, words[1].text if is_known else None)
            words = words[1:]
            exports |= keyword == "export"
            while keyword in _DECLARATIONS and words and words[0].text.startswith("-"):
                exports = "x" in words[0].text or (exports and "n" not in words[0].text)
                words = words[1:]
        known = not any(word.unknown for word in words)
        runs = self._branches.enter([*(word.text for word in words), *arrays], ended_by, is_known=known)
        if runs is False and not (words and is_test(words[0].text)):
            return
        for name, items in arrays.items():
            if runs is None and name in self._script.arrays:
                self._script.guesses[name] = " ".join(item.text for item in items)
            self._script.arrays[name] = items
        if len(words) >= 3 and words[0].text == "for" and words[2].text == "in":
            # A loop over one value is an assignment; over several, the value is unknown.
            values = words[3:]
            several = Word("", (f"${words[1].text} (one of {len(values)} values of a loop)",))
            self._script.variables[words[1].text] = values[0] if len(values) == 1 else several
            words = []
        self._script.take(words, exports=exports, is_guess=runs is None)


def _words_of(text: str, script: Script) -> list[Word]:
    """Reads words inside other words, with the variables of the script."""
    inner = _Reader(text, replace(script, commands=[]), only_words=True).read()
    return [word for command in inner.commands for word in command]


def _word_of(text: str, script: Script) -> Word:
    """Expands a default inside `${NAME:-default}`."""
    words = _words_of(f'"{text}"' if '"' not in text else text, script)
    return Word(" ".join(word.text for word in words), tuple(name for word in words for name in word.unknown))


_HANDLERS: dict[str, Callable[[_Reader], None]] = {
    "\\": _Reader._escape,
    "'": _Reader._single_quoted,
    '"': _Reader._double_quoted,
    "$": _Reader._expand,
    "`": _Reader._backquoted,
    "#": _Reader._comment,
    "(": _Reader._bracket,
    **dict.fromkeys(" \t", _Reader._blank),
    **dict.fromkeys("&<>", _Reader._redirection),
    **dict.fromkeys("\n;|)", _Reader._operator),
}
"""Readers of characters that are special outside quotes."""
