"""Bases and moduli in words and signs: 101 in base two, 101_{(2)}, 4 (mod 9), congruent to 4 modulo 9."""

import re

_WORDS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: base for base, name in enumerate(_WORDS.split(), start=2)}
_SYSTEMS = {"binary": 2, "bin": 2, "ternary": 3, "octal": 8, "oct": 8, "hexadecimal": 16, "hex": 16}
_BASE = rf"\$?([0-9]{{1,2}}|{'|'.join(sorted(_BASES, key=len, reverse=True))})\$?(?![a-zA-Z0-9])"
_SYSTEM = rf"({'|'.join(_SYSTEMS)})(?![a-zA-Z])"
_IN = r"(?:(?:written |expressed )?in )?"
_SUBSCRIPT = re.compile(
    r"_(\{(?:[^{}]|\{[^{}]{0,30}\}){1,40}\}|\\(?:text\w{0,6}|mathrm|mathbf)\s*\{[^{}]{1,30}\}"
    rf"|[0-9]{{1,2}}|(?:{'|'.join(_BASES)})(?![a-zA-Z_]))"
)
_NO_BASE = re.compile(r"\\(?:text|math|rm|bf|it)[a-z]*|[{}()\[\]\s~]|base-?")
_BEHIND = re.compile(
    rf"\s{{0,3}}(?:\(\s{{0,3}})?\\text\{{[\s(]*{_IN}base[\s-]*\}}\s*\{{?{_BASE}\}}?(?:\s*\)|\s*\\text\{{\s*\)\s*\}})?"
    rf"|\s{{0,3}}\\text\{{[\s(]*{_IN}(?:base[\s-]*{_BASE}|{_SYSTEM})[\s)]*\}}"
    rf"|[ \t]{{0,3}}\({_IN}(?:base[ -]{_BASE}|{_SYSTEM})\)|[ \t]{{1,3}}{_IN}base[ -]{_BASE}|[ \t]{{1,3}}in {_SYSTEM}"
)
_SPELLED_BASE = re.compile(rf"(?<=[0-9A-F])(?:{_BEHIND.pattern})(?=\s*(?:\Z|[=,;.]))", re.IGNORECASE)
_SUBSCRIBED = re.compile(rf"(?<=[0-9A-F])(?:{_SUBSCRIPT.pattern})", re.IGNORECASE)
_DIGITS = re.compile(
    r"(?<![a-zA-Z0-9)}])\(\s*([0-9][0-9A-F]*)\s*\)(?=\s*_)|\\(?:text|mathrm|mathbf)\s*\{([0-9A-F]+)\}(?=\s*_)"
)
"""Digits in brackets or in upright type, before a base."""

_MODULUS = r"\$?\s?([0-9]{1,30}(?:\^\{?[0-9]{1,4}\}?)?|[a-zA-Z](?![a-zA-Z]))\s?\$?"
_MODULUS_BEHIND = re.compile(
    rf"[ \t]{{0,3}},?[ \t]{{0,3}}(?:\(\s?mod(?:ulo)?\s+{_MODULUS}\)|\[\s?mod(?:ulo)?\s+{_MODULUS}\]"
    rf"|\\pmod\s*\{{?{_MODULUS}\}}?|(?<=[\s,])mod(?:ulo)?\s+{_MODULUS}(?![\w$]|\s?[-+*/^=]\s?[\w(]))"
)
_CONGRUENT = re.compile(
    r"(\$|\\\))?\s(?:(?:is|are|must be) )?(?:congruent|equivalent) to (?:\$|\\\()?(-?\s?[0-9]{1,30}|[a-z])(?:\$|\\\))?"
    r"(?=[\s,(]{1,3}mod)"
)
_CONGRUENT_IN_LATEX = re.compile(r"\\text\s*\{\s*(?:(?:is|are) )?congruent to\s*\}")


def suffix_at(text: str, position: int) -> tuple[str, int] | None:
    """Returns the base or modulus after a number in LaTeX, and its end; None if there is neither."""
    if found := _MODULUS_BEHIND.match(text, position):
        return f"\\pmod{{{_first(found)}}}", found.end()
    found = _SUBSCRIPT.match(text, position)
    if found and (base := _named_base(found[1])):
        return f"_{{{base}}}", found.end()
    found = _BEHIND.match(text, position)
    return (f"_{{{_named_base(_first(found))}}}", found.end()) if found else None


def with_congruences(text: str) -> str:
    """Returns a text with "x is congruent to 4 modulo 9" as x \\equiv 4 modulo 9."""
    return _CONGRUENT.sub(lambda found: f" \\equiv {found[2]}{found[1] or ''}", text)


def in_signs(latex: str) -> str:
    """Returns an answer with bases as subscripts, 101_{2}, and congruences in signs."""
    latex = _CONGRUENT_IN_LATEX.sub(r"\\equiv ", latex)
    if "\\equiv" in latex:
        latex = latex.replace("\\bmod", "\\mod")
    if "_" in latex:
        latex = _SUBSCRIBED.sub(_subscript, _DIGITS.sub(r"\1\2", latex))
    return _SPELLED_BASE.sub(lambda found: f"_{{{_named_base(_first(found))}}}", latex)


def _first(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group)


def _subscript(found: re.Match[str]) -> str:
    base = _named_base(found[1])
    return f"_{{{base}}}" if base else found[0]


def _named_base(text: str) -> str:
    """Returns the digits of a base, or "" for any other subscript."""
    name = _NO_BASE.sub("", text).lower()
    return str((_BASES | _SYSTEMS).get(name, "")) or (name if name.isdigit() else "")
