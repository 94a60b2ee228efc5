"""Expressions in plain text, each read as a whole and written in LaTeX: 3*sqrt(2)/2, (1, 2), x > 5, 11 5/6."""

import re
from dataclasses import dataclass

from services.reward.common.math import numerals, units

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r"|(?P<time>[0-9]+(?::[0-9]+){1,4}(?![0-9:]))"
    r"|(?P<number>[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])"
    r"|[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<command>\\[a-zA-Z]+|\\[,;:!{}% ])"
    r"|(?P<word>[A-Za-z]+(?:['’][a-z]+)?)"
    r"|(?P<sign><=|>=|!=|\*\*|==|[-+*/^=<>!%(),\[\]{}_'|])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_FUNCTIONS = units.word_set("sqrt sin cos tan cot sec csc log ln exp arcsin arccos arctan sinh cosh tanh cbrt")
_SHORT_WORDS = units.word_set("is to of in on at by or no so as if it we be an")
_CONSTANTS = {"pi": "\\pi ", "infinity": "\\infty ", "inf": "\\infty ", "theta": "\\theta "}
_OPERATORS = ("+", "-", "*", "/", "^", "=", "<", ">", "<=", ">=", "!=", "**", "==", "_")
_SIGNS = {
    "*": "\\cdot ",
    "**": "^",
    "<=": "\\le ",
    ">=": "\\ge ",
    "!=": "\\neq ",
    "==": "=",
    "<": "<",
    ">": ">",
    "%": "\\%",
}
_ARITHMETIC = ("+", "-", "*", "/", "=", "\\times", "\\cdot", "\\div")
_FACTORIAL = re.compile(r"[nmkrN]!(?=[\s.,;)]|\Z)")
_AMOUNT = re.compile(r"\\?[$€£¥₹](?=\s?[0-9]|\.[0-9])")
_OPENING = {"(": ")", "[": ")]", "{": "}"}
_COMMANDS_OF_OPERATORS = frozenset(
    f"\\{name}" for name in ("cdot", "times", "div", "pm", "mp", "le", "ge", "lt", "gt", "leq", "geq", "ne", "neq")
) | {"\\in", "\\cup", "\\cap", "\\approx", "\\equiv"}
_CURRENCY = re.compile(r"(?:(?:Rs|USD|US|EUR|GBP|INR)\.?\s*)?(?:\\?\$|€|£|¥|₹)\s*|(?:Rs|USD|EUR|GBP|INR)\.?\s+|Rs\.")
_UNIT_SIGN = re.compile(r"[ \t]*(\\%|%|\\?\$|€|£|¥|₹|\^\\circ ?[CF]?)")
_UNIT_WORD = re.compile(r"[ \t-]*([A-Za-z]+(?:\.[a-z]\.?)?)(\^\{?[0-9]\}?|[23](?![0-9]))?(/)?")
_BETWEEN_UNITS = ("per", "square", "cubic", "of")
_DECIMAL_COMMA = re.compile(r"([0-9]+),([0-9]{1,2}|[0-9]{4,})(?![0-9,])|0,([0-9]+)(?![0-9,])")
_HEXADECIMAL = re.compile(r"[0-9][0-9A-F]*[A-F][0-9A-F]*(?![0-9A-Za-z])")
_BARS = re.compile(r"\|(?=[^\s|])[^|\n]{1,40}(?<=\S)\|(?![\w|])")
"""An absolute value. Bars with spaces belong to a table."""
_REMAINDER = re.compile(r"(?:[0-9]+|\)) mod [0-9]+ ?=")
_MAX_TOKENS = 200
_MIXED = re.compile(r"([0-9]+)[ \t]+([0-9]+)/([0-9]+)(?![0-9/]|\.[0-9])")


@dataclass(frozen=True)
class Expression:
    start: int
    end: int
    latex: str


@dataclass
class _Token:
    kind: str
    text: str
    start: int
    end: int


def expression_at(text: str, start: int) -> Expression | None:
    """Returns the expression that begins at `start` and ends before the next words; None if there is none."""
    position, currency = start, ""
    sign = re.compile(r"-(?=\s?(?:\\?\$|€|£|¥|₹|Rs)[ ]?[0-9.])").match(text, start)
    position = sign.end() if sign else start
    if found := _CURRENCY.match(text, position):
        if text[found.end() : found.end() + 1] not in tuple("-.0123456789"):
            return None
        currency, position = found[0].strip(), found.end()
    hexadecimal = _HEXADECIMAL.match(text, position)
    if hexadecimal and (base := numerals.suffix_at(text, hexadecimal.end())):
        return Expression(start, base[1], hexadecimal[0] + base[0])
    tokens = _run(text, position)
    latex, end = _written(text, tokens)
    if not latex:
        return None
    unit, end = numerals.suffix_at(text, end) or _unit(text, end)
    return Expression(start, end, ("-" if sign else "") + _currency(currency) + latex + unit)


def _currency(sign: str) -> str:
    name = sign.strip(" .")
    return f"\\text{{{name}}}" if name.isalpha() else ("\\$" if sign.endswith("$") else sign)


def _run(text: str, start: int) -> list[_Token]:
    """Returns the tokens that may belong to one expression."""
    run: list[_Token] = []
    opened: list[str] = []
    position = start
    while position < len(text) and len(run) < _MAX_TOKENS:
        if run and (amount := _AMOUNT.match(text, position)) and _last(run).text in _ARITHMETIC:
            position = amount.end()  # 15+6=$21.
        found = _TOKEN.match(text, position)
        if found is None or not found.lastgroup:
            break
        token = _Token(found.lastgroup, found[0], found.start(), found.end())
        if not _belongs(token, run, opened, text):
            break
        if token.text in _OPENING:
            opened.append(token.text)
        elif token.text in (")", "]", "}") or (token.text == "|" and opened[-1:] == ["|"]):
            opened.pop()
        elif token.text == "|":
            opened.append("|")
        run.append(token)
        position = found.end()
    return run


def _belongs(token: _Token, run: list[_Token], opened: list[str], text: str) -> bool:
    last = _last(run) if run else None
    if token.kind in ("space", "time"):
        return token.kind == "space" or last is None or last.kind == "sign"
    if token.kind == "number":
        return not (last and last.kind in ("number", "time")) or bool(_MIXED.match(text, last.start))
    if token.kind == "command":
        return token.text not in ("\\boxed", "\\fbox", "\\text", "\\textbf")
    if token.kind == "word":
        is_in_bars = last is not None and last.text == "|" and opened[-1:] == ["|"] and len(token.text) == 1
        return is_in_bars or _is_mathematical(token, last, text)
    if token.kind == "other":
        return False
    if token.text in (")", "]", "}"):
        return (bool(opened) and token.text in _OPENING[opened[-1]]) or bool(
            opened and opened[-1] == "(" and token.text == "]"
        )
    if token.text == "|":
        is_behind = last is None or last.text in (*_OPERATORS, "(", "[", ",") or last.end == token.start
        return opened[-1:] == ["|"] or (is_behind and bool(_BARS.match(text, token.start)))
    if token.text == ",":
        return bool(opened)
    if token.text == "[" and last is not None and (last.kind in ("number", "word") or last.text in (")", "]")):
        return False  # A note: 4 [1].
    if token.text == "!":
        return _is_factorial(token, last, text)
    return True


def _last(run: list[_Token]) -> _Token:
    """Returns the last token that is not a space. The first token of a run is never a space."""
    return next((each for each in reversed(run) if each.kind != "space"), run[0])


def _is_factorial(token: _Token, last: _Token | None, text: str) -> bool:
    """Returns whether an exclamation mark after a number is a factorial rather than the end of the sentence."""
    is_behind = (
        last is not None and last.end == token.start and (last.kind in ("number", "word") or last.text in (")", "!"))
    )
    return (
        is_behind
        and bool(re.match(r"[ ]?[-+*/^=),.!\\]", text[token.end :]))
        and text[token.end :].strip() not in ("", "!")
    )


def _is_mathematical(token: _Token, last: _Token | None, text: str) -> bool:
    """Returns whether a word is a function, a constant or letters that multiply."""
    word = token.text
    if word in _FUNCTIONS:
        return bool(re.match(r"\s?[({0-9\\^]|\s[a-z]\b", text[token.end :]))
    if word.lower() in _CONSTANTS:
        return True
    if word == "mod" and last is not None and _REMAINDER.match(text, last.start):
        return True
    after = text[token.end :]
    is_applied = bool(
        re.match(
            r"\s?(?:[=<>^*/+_]|-\s?[0-9a-z(]|!=|\\(?:le|ge|neq|in|times|cdot|approx|equiv)\b)|\([0-9a-z,+*^ -]{1,20}\)",
            after,
        )
    )
    if last is None:
        return len(word) == 1 and (is_applied or bool(_FACTORIAL.match(text, token.start)))
    is_glued = last.end == token.start and (last.kind == "number" or last.text in (")", "}"))
    if is_glued:
        return (
            len(word) <= 3
            and word.lower() not in units.SIZES
            and (word.lower() not in units.KNOWN or len(word) == 1)
            and not (len(word) == 1 and word in units.SINGLE_LETTERS and not is_applied)
        )
    if word == "x" and last.kind == "number" and re.match(r"\s[0-9]", after):
        return True
    if word.lower() in _SHORT_WORDS:
        return False
    is_operand = last.text in _OPERATORS or last.text in ("(", "[", ",", "{") or last.text in _COMMANDS_OF_OPERATORS
    return (
        len(word) <= (2 if word.islower() and word not in units.KNOWN else 1)
        and is_operand
        and not (word in ("a", "I") and re.match(r"\s[a-z]{2}", after))
    )


def _written(text: str, tokens: list[_Token]) -> tuple[str, int]:
    """Writes tokens in LaTeX, without unmatched operators and brackets at the end."""
    tokens = _balanced(tokens)
    while tokens and (tokens[-1].kind == "space" or tokens[-1].text in (*_OPERATORS, ",", "(", "[", "{", "'", "!=")):
        if tokens[-1].text in ("+", "=") and tokens[:-1] and tokens[-2].kind == "number":
            break  # 5+: more than 5.
        tokens = tokens[:-1]
    if all(token.kind not in ("number", "time", "command", "word") for token in tokens):
        return "", tokens[-1].end if tokens else 0
    if len(tokens) == 1 and tokens[0].kind == "command" and tokens[0].text[1:2] in tuple(",;:!{}% "):
        return "", tokens[-1].end
    number = _DECIMAL_COMMA.match(text, tokens[0].start) if len(tokens) == 1 and tokens[0].kind == "number" else None
    if number and "." not in tokens[0].text:
        return number[0].replace(",", "."), number.end()
    return _latex(tokens), tokens[-1].end


def _balanced(tokens: list[_Token]) -> list[_Token]:
    """Returns the tokens before the first bracket that is never closed."""
    opened: list[int] = []
    for index, token in enumerate(tokens):
        is_bar_open = bool(opened) and tokens[opened[-1]].text == "|"
        if token.text in _OPENING:
            opened.append(index)
        elif (token.text in (")", "]", "}") and opened) or (token.text == "|" and is_bar_open):
            opened.pop()
        elif token.text == "|":
            opened.append(index)
    return tokens[: opened[0]] if opened else tokens


def _latex(tokens: list[_Token]) -> str:
    pieces: list[str] = []
    brackets: list[str] = []
    for index, token in enumerate(tokens):
        before = next((piece.strip() for piece in reversed(pieces) if piece.strip()), "")
        if token.kind == "space":
            pieces.append(" ")
        elif token.kind == "number":
            pieces.append(token.text.replace(",", "").replace(" ", ""))
        elif token.kind == "word":
            pieces.append(_word(token.text, before, tokens[index + 1 :]))
        elif token.text == "{":
            is_group = bool(re.search(r"(?:[\^_}\]]|\\[a-zA-Z]+\*?)\s*$", "".join(pieces)))
            brackets.append("}" if is_group else "\\}")
            pieces.append("{" if is_group else "\\{")
        elif token.text == "(" and before in ("^", "\\sqrt", "\\sqrt[3]"):
            brackets.append("}")
            pieces.append("{")
        elif token.text in ("(", "["):
            brackets.append("")
            pieces.append(token.text)
        elif token.text in (")", "]", "}"):
            pieces.append((brackets.pop() if brackets else "") or token.text)
        else:
            pieces.append(_SIGNS.get(token.text, token.text) if token.kind == "sign" else token.text)
    return "".join(pieces).strip()


def _word(word: str, before: str, after: list[_Token]) -> str:
    if word == "mod":
        return "\\bmod "
    if word == "cbrt":
        return "\\sqrt[3]"
    if word in _FUNCTIONS:
        return f"\\{word}" if word == "sqrt" else f"\\{word} "
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    if word == "x" and before[-1:].isdigit() and after[1:] and after[1].kind == "number":
        return "\\times "
    return word


def _unit(text: str, start: int) -> tuple[str, int]:
    """Returns the unit, word of size or percent sign after an expression, in LaTeX, and its end."""
    if found := _UNIT_SIGN.match(text, start):
        return {"%": "\\%", "$": "\\$"}.get(found[1], found[1]), found.end()
    words: list[tuple[str, int]] = []
    end = start
    while found := _UNIT_WORD.match(text, end, start + 60):
        name, power, slash = found.groups(default="")
        is_unit = name.lower().replace(".", "") in units.KNOWN and (len(name) > 1 or name in units.SINGLE_LETTERS)
        if not is_unit and name.lower() not in _BETWEEN_UNITS:
            break
        end = found.end()
        words.append((name + power.replace("{", "").replace("}", "") + slash, end))
    while words and words[-1][0] in (*_BETWEEN_UNITS, "in"):
        words.pop()
    return (f"\\text{{ {' '.join(word for word, _ in words)}}}", words[-1][1]) if words else ("", start)
