"""Normal forms of answers in LaTeX, as text: of MATH's own scorer (Hendrycks et al., arXiv:2103.03874), and of Minerva
(Lewkowycz et al., arXiv:2206.14858, appendix D)."""

import re

from services.reward.common.text import number_form
from services.reward.common.verdict import Unscorable

# The answer is at the end. Longer texts are cut, since some patterns here and in math-verify are not linear.
_MAX_CHARACTERS = 20_000
_MAX_LEVELS = 100
_BRACE = re.compile(r"\\.|[{}()\[\]]", re.DOTALL)


def tail(text: str) -> str:
    return text[-_MAX_CHARACTERS:]


def check_depth(text: str) -> None:
    """Raises `Unscorable` if brackets are nested too deeply for a parser."""
    deepest = nesting(text)
    if deepest > _MAX_LEVELS:
        raise Unscorable(f"brackets are nested {deepest} deep; at most {_MAX_LEVELS} are read")


def nesting(text: str) -> int:
    """Returns the depth of nested brackets."""
    depth = deepest = 0
    for bracket in _BRACE.findall(text):
        if bracket in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "})]":
            depth = max(0, depth - 1)
    return deepest


def hendrycks_form(text: str) -> str:
    """Returns the normal form of MATH's own scorer: answers with the same form are equal.

    Removes spacing, sizes of brackets and fractions, degrees, dollars, percent signs, a unit in \\text{ ...}, and a
    name of at most two characters before the only "="; adds missing braces and zeros; rewrites a/b as \\frac{a}{b}.
    """
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac").replace("\\left", "").replace("\\right", "")
    for nothing in ("^{\\circ}", "^\\circ", "\\$"):
        text = text.replace(nothing, "")
    if text.count("\\text{ ") == 1:
        text = text.partition("\\text{ ")[0]
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = _with_fraction_braces(text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return re.sub(r"\A(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)\Z", r"\\frac{\1}{\2}", text)


def math_form(answer: str) -> str:
    """Returns the normal form of an answer in LaTeX by MATH's own scorer; for a number, its value."""
    return number_form(hendrycks_form(answer))


def _with_fraction_braces(text: str) -> str:
    """Rewrites \\frac12 as \\frac{1}{2}; returns the text unchanged if a fraction is incomplete."""
    head, *rest = text.split("\\frac")
    pieces = [head]
    for piece in rest:
        if piece.startswith("{"):
            pieces.append(piece)
        elif len(piece) < 2:
            return text
        elif piece[1] == "{":
            pieces.append(f"{{{piece[0]}}}{piece[1:]}")
        else:
            pieces.append(f"{{{piece[0]}}}{{{piece[1]}}}{piece[2:]}")
    return "\\frac".join(pieces)


_MINERVA_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
# The order matters: removing one of these can create another.
_MINERVA_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "ft", "hours", "km", "units", "\\ldots", "sue"),
    *("points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges"),
    *("students", "childrentickets", "multiples"),
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}"),
    *("^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_MINERVA_ANSWER = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")


def minerva_answer(text: str) -> str | None:
    """Returns the text between "Final Answer: The final answer is" and ". I hope it is correct."; None without them."""
    found = _MINERVA_ANSWER.search(text)
    return found[1].strip() if found else None


def minerva_form(text: str) -> str:
    """Returns Minerva's normal form of an answer.

    Keeps the text after the last "=", or its first formula between dollar signs; removes units, articles and the commas
    of a whole number; keeps the contents of \\text, \\textbf, \\overline and \\boxed; adds missing braces.
    """
    text = text.rpartition("=")[2]
    for old, new in _MINERVA_REPLACED:
        text = text.replace(old, new)
    for unit in _MINERVA_REMOVED:
        text = text.replace(unit, "")
    text = _first_formulas(text)
    for command in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{command}{{([^\n}}]*)}}", r"\1", text)
    text = re.sub(r"\\boxed{(.*)}", r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
    return text.replace(",", "") if text.replace(",", "").isdigit() else text


def _first_formulas(text: str) -> str:
    """Reduces each line with a formula between dollar signs to its first formula."""
    return "\n".join(line.split("$")[1] if line.count("$") > 1 else line for line in text.split("\n"))
