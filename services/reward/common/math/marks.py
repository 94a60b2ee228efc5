"""The parts of an answer that computer algebra loses: bases, moduli, dots, relations."""

import re
from dataclasses import dataclass

_BASE = re.compile(r"(?<![A-Za-z\\])[0-9][0-9A-F]*_(?:\{0*([0-9]+)\}|([0-9]))")
_NAMED_MODULUS = (
    r"(?:\\[pb]?mod|\\(?:text|mathrm|operatorname)\{\s*mod(?:ulo)?\s*\}|(?<![a-zA-Z\\])mod(?:ulo)?(?![a-zA-Z]))"
)
_MODULUS = re.compile(
    rf"\\pmod\s*(?:\{{([^{{}}]*)\}}|([0-9a-zA-Z]))|\(\s*{_NAMED_MODULUS}\s*\{{?([^(){{}}]*)\}}?\s*\)"
    r"|\\text\{\s*\(?\s*mod(?:ulo)?(?![a-z])\s*([0-9a-zA-Z]+)\s*\)?\s*\}"
    r"|(?<=[0-9a-zA-Z}\s])(?:\\mod|\\text\{\s*\(?mod(?:ulo)?\s*\)?\s*\}|(?<![a-zA-Z\\])mod(?:ulo)?)\s*\{?\s*([0-9]+|[a-zA-Z](?![a-zA-Z]))\}?\s*$"
)
_RELATION = re.compile(
    r"(?:\\(?:le|ge|lt|gt|ne|neq|neg|not|ll|gg|nless|ngtr|geqq|leqq)(?![a-zA-Z])|[<>]=?|!=|≮|≯|\\not\s*=)\s*"
)
_NOTHING = re.compile(r"(?:\\(?:approx|sim|simeq|therefore|implies|Rightarrow|to)(?![a-zA-Z])|={1,2}|\\quad)\s*")
_RESTRICTED = re.compile(r"\\(?:neq?|in|text\{\s*(?:if|for|when))(?![a-zA-Z])")
_CONDITION = re.compile(
    r"[,(]\s*[a-zA-Z]\s*\\(?:neq?(?![a-zA-Z])[^,()]{1,20}|in\s*\\mathbb\s*\{?\s*[A-Z]\s*\}?(?:\^\{?[+0-9*]\}?)?)\s*\)?\s*\Z"
    r"|\\text\{[,(\s]*(?:for (?:all|any|every|each)|where|with)\b[^{}]*\}[^,]*\Z"
    r"|\\text\{[,(\s]*for\s*\}\s*[a-zA-Z]\s*(?:\\(?:neq?|in|ge|le)(?![a-zA-Z])|[<>])[^,]*\Z"
    r"|\\text\{\s*(?:is|are) (?:the|our|an?)\b(?![^{}]*\b(?:not|if|bound|wrong|incorrect|false)\b)[^{}]*\}\s*\Z"
)
_OPERATOR = re.compile(
    r"\\(?P<command>i{0,3}nt|oint|sum|prod|coprod|lim|limsup|liminf|gcd|lcm|det|max|min|sup|inf|bmod|bigcup|bigcap|arg|deg)(?![a-zA-Z])"
    r"|(?:\\(?:text|mathrm|operatorname|rm)\*?\s*\{\s*|(?<![a-zA-Z\\]))"
    r"(?P<name>gcd|lcm|max|min|det|lim|mod|rank|tr|gcf|hcf|GCD|LCM|lowest common multiple)"
    r"(?![a-zA-Z])"
    r"|(?P<derivative>\\frac\s*\{\s*(?:d|\\partial)(?:\^\{?[0-9n]\}?)?\s*[a-zA-Z]?(?:\([a-z]\))?\s*\}\s*\{\s*(?:d|\\partial)\s*[a-zA-Z])"
    r"|(?P<determinant>\\begin\{vmatrix\})|(?P<bounds>\|\s*_\s*\{?[^|]{1,40}\^)"
)
_JOINT = re.compile(r"\\text\{[^{}]{0,60}\b(and|or)\b[^{}]{0,60}\}|(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|lt|gt|neq?|ll|gg)(?![a-zA-Z])")
_SEPARATOR = re.compile(r"[{}()\[\]]|[,;]|(?<![<>!\\:=])=(?!=)|\\approx(?![a-zA-Z])|\\[{}]")


@dataclass(frozen=True)
class Marks:
    """The marks of an answer. Two answers are equal only if their marks are."""

    bases: tuple[str, ...]
    """The bases of numbers, in order, without 10: "8" for 12_8."""
    dots: tuple[int, ...]
    """The positions of dots in a sequence."""
    relation: str
    """The relation before the answer: "<" in < 5."""


def marks(latex: str) -> Marks:
    """Returns the marks of an answer in common notation."""
    relation = _RELATION.match(latex)
    return Marks(tuple(bases(latex)), _dots(latex), relation[0].strip() if relation else "")


def bases(text: str) -> list[str]:
    """Returns the bases of a formula's numbers, in order, without 10: "8" for 12_8, which math-verify reads as 12."""
    return [base for braced, bare in _BASE.findall(text) if (base := braced or bare) != "10"]


def without_relation(latex: str) -> str:
    """Returns an answer without the relation, or the meaningless sign, before it."""
    latex = _NOTHING.sub("", latex, count=1) if _NOTHING.match(latex) else latex
    relation = _RELATION.match(latex)
    return latex[relation.end() :] if relation else latex


def without_condition(latex: str) -> str:
    """Returns an answer without the condition on its letters that follows it: 2k\\pi, k \\in \\mathbb{Z}."""
    found = _CONDITION.search(latex)
    if not found or _RESTRICTED.search(latex, 0, found.start()) or not any(map(str.isalnum, latex[: found.start()])):
        return latex
    return latex[: found.start()].rstrip(" ,(")


def without_modulus(latex: str) -> tuple[str, str]:
    """Splits an answer into residue and modulus; the modulus is "" if there is none."""
    found = _MODULUS.search(latex)
    if not found:
        return latex, ""
    modulus = next(group for group in found.groups() if group is not None)
    return (latex[: found.start()] + latex[found.end() :]).strip().rstrip("(,\\ "), modulus.replace(" ", "")


def operators(latex: str) -> tuple[str, ...]:
    """Returns the operators that are left to be computed, in order: integrals, sums, limits, gcd, max, determinants. In
    an equation the last side counts."""
    sides = [element[-1] for element in elements(latex)]
    return tuple(
        found.lastgroup + found[0].replace(" ", "")
        for side in sides
        for found in _OPERATOR.finditer(side)
        if found.lastgroup
    )


def states_order(latex: str) -> bool:
    """Returns whether a part of an answer is an inequality."""
    return bool(_ORDER.search(latex))


def joints(latex: str) -> list[str]:
    """Returns the words "and" and "or" between inequalities of an answer, in order. Between solutions (x = 1 and x = 2)
    both words only separate the elements of a list."""
    pieces = _JOINT.split(latex)
    joined = [(pieces[at] or pieces[at + 1], pieces[at - 1], pieces[at + 2]) for at in range(1, len(pieces), 3)]
    return [word for word, one, other in joined if states_order(one) and states_order(other)]


def elements(latex: str) -> list[list[str]]:
    """Splits a list into its elements, and each element, if it is an equation, into its sides."""
    found: list[list[str]] = [[]]
    depth = start = 0
    for sign in _SEPARATOR.finditer(latex):
        if sign[0] in "{([" or sign[0] == "\\{":
            depth += 1
        elif sign[0] in "})]" or sign[0] == "\\}":
            depth -= 1
        elif depth <= 0:
            found[-1].append(latex[start : sign.start()])
            start = sign.end()
            if sign[0] in ",;":
                found.append([])
    found[-1].append(latex[start:])
    return found


def _dots(latex: str) -> tuple[int, ...]:
    if "\\ldots" not in latex:
        return ()
    elements = re.split(r"[,;:+]", latex)
    return tuple(index for index, element in enumerate(elements) if "\\ldots" in element)
