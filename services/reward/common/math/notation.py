"""Answers in one notation: signs of Unicode as LaTeX, spacing, upright letters, repeating decimals."""

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

from services.reward.common.math import numerals

_SIGNS = r"""
    −- ‐- ‑- ‒- ﹣- ⁄/ ∕/ ×\times ✕\times ⋅\cdot ·\cdot ∙\cdot •\cdot ÷\div ±\pm ∓\mp °^\circ º^\circ ∞\infty
    ≤\le ≥\ge ⩽\le ⩾\ge ≠\neq ≈\approx ≃\approx ≅\approx ∼\sim
    ≡\equiv ∈\in ∉\notin ∪\cup ∩\cap ∅\emptyset Ø\emptyset
    ⊆\subseteq ⊂\subset ∖\setminus ∨\lor ∧\land ¬\neg ℝ\mathbb{R} ℤ\mathbb{Z} ℕ\mathbb{N} ℚ\mathbb{Q} ℂ\mathbb{C}
    ∑\sum ∏\prod ∫\int …\ldots ⋯\ldots →\to ′' ″'' ‘' ’' “" ”" ⟨\langle ⟩\rangle ⌊\lfloor ⌋\rfloor ⌈\lceil ⌉\rceil
    ∠\angle △\triangle ∀\forall ∃\exists ∂\partial ﹢+ ﹦= ￡£ ￥¥ ∛\sqrt[3] ∜\sqrt[4]
    α\alpha β\beta γ\gamma δ\delta ε\epsilon ζ\zeta η\eta θ\theta λ\lambda μ\mu ν\nu ξ\xi
    π\pi ρ\rho σ\sigma τ\tau φ\phi
    χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Π\Pi Σ\Sigma
    Φ\Phi Ψ\Psi Ω\Omega ϕ\varphi ϑ\vartheta ℯe ⅇe ⅈi
"""
"""Each sign, followed by its LaTeX."""
_TABLE = str.maketrans(
    {"\u3002": ". ", "\u3001": ", "}
    | {pair[0]: f"{pair[1:]} " if pair[-1].isalpha() and "\\" in pair else pair[1:] for pair in _SIGNS.split()}
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣᵃᵇᵏᵐ", "0123456789+-()nixabkm")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙₖₓ", "0123456789+-nkx")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣᵃᵇᵏᵐ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙₖₓ]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_ROOT = re.compile(r"(√|\\sqrt\[[34]\])\s*(?:(\{)|\(([^()]{1,200})\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z]|\\[a-z]+)?)")
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad]")
_STYLED_SIGNS = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff]")
"""Full-width signs; letters and digits of mathematics in bold, italic and others."""
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_DASH = re.compile("(?<![0-9A-Za-z)}])[\u2013\u2014\u2015](?=\\s?[0-9.$\\\\A-Za-z(]{1})(?!\\s[A-Za-z])")
_GROUPED = r"(?=[0-9]{3}(?![0-9]))"
_THIN_GROUP = re.compile(rf"(?<=[0-9])(?:\\[,;:! ]|~|,\\!\s*|\{{,\}}|\\thinspace\s?|[\u00a0\u2009\u202f]){_GROUPED}")
_DECIMAL_COMMA = re.compile(r"(?<![0-9.,}])([0-9]+)\{,\}(?=(?:[0-9]{1,2}|[0-9]{4,})(?![0-9]|\{,\}))")
"""The decimal comma of 3{,}5, which has no space after it."""
_SPACE_GROUPS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])")
_MIXED = re.compile(r"(?<![0-9./^_])([0-9]+)\s+([0-9]+)/([0-9]+)(?![0-9/!^]|\.[0-9])")
_POWER_OF_TEN = re.compile(r"(?<![\w.\\^])[0-9]{1,30}(?:\.[0-9]{1,30})?[eE][-+]?[0-9]{1,2}(?![\w{]|\.[0-9])")
_WIDE = re.compile(r"\s{3,}")
"""Long spaces, which make patterns slow."""
_SPACING = re.compile(
    r"(?<!\\)\\[,;:! ]|~"
    r"|\\(?:quad|qquad|thinspace|medspace|thickspace|displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])"
)
_SIZES = re.compile(
    r"\\(?:[bB]igg?[lrm]?|left|right|middle)(?![a-zA-Z])\s*\.?(?=[^a-zA-Z])"
    r"|\\(?:h|v)space\*?\{[^{}]*\}|\\(?:phantom|label|tag)\*?\{[^{}]*\}"
)
_UPRIGHT = (
    r"\\(?:text(?:rm|it|normal|sf|up|md|bf)?|math(?:rm|it|sf|normal|up|bf)|sym(?:rm|up|it)|operatorname|mbox"
    r"|boldsymbol|bm|pmb)(?![a-zA-Z])"
)
_UPRIGHT_LETTER = re.compile(rf"{_UPRIGHT}\s*\{{\s*([A-Za-z])\s*\}}")
_SWITCHED_LETTER = re.compile(r"\{\\(?:rm|bf|it)\s+([A-Za-z])\s*\}")
_WITHOUT_BRACES = re.compile(rf"({_UPRIGHT})\s*([A-Za-z])(?![a-z])")
"""\\mathrm e, for \\mathrm{e}."""
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|lambda|nu|xi|pi|rho|sigma|tau|phi|varphi|chi|psi|omega)"
    r"(?![a-zA-Z])"
)
_UPRIGHT_GREEK = re.compile(rf"{_UPRIGHT}\s*(?:\{{\s*({_GREEK})\s*\}}|({_GREEK}))")
_UPRIGHT_FUNCTION = re.compile(
    rf"{_UPRIGHT}\s*\{{\s*((?:arc)?(?:sin|cos|tan)h?|cot|csc|ln|log|exp)\s*\}}(?=\s*[\w({{\\^])"
)
_PI = re.compile(rf"{_UPRIGHT}\s*\{{\s*pi\s*\}}|(?<![a-zA-Z\\])(?<!text\{{)(?<!text\{{ )pi(?![a-zA-Z])")
_JOINT = re.compile(rf"{_UPRIGHT}\s*\{{([\s,;]*(?:and|or)[\s,;]*)\}}")
_EITHER = re.compile(r"\A\\text\s*\{\s*(?:either|both)\s*\}\s*(?=\S)")
_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?[0-9]\}?)?)\s*[({]?\s*([0-9]+(?:\.[0-9]+)?)\s*\^\\circ\s*[)}]?"
)
_TYPE = re.compile(
    r"\\(?:bf|it|rm|sf|tt|large|Large|LARGE|huge|small|boldmath|bfseries)(?![a-zA-Z])(?!\s+[A-Za-z]\})|\\(?:text)?color\s*\{[^{}]*\}"
)
_ANNOUNCING = re.compile(r"^\\text\s*\{\s*(?:the |final |my )*answer(?: is)?\s*[:=]?\s*\}", re.IGNORECASE)
_WHOLE = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathsf|ensuremath|displaystyle|underline)\s*\{([^{}]*)\}")
_STYLED = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|textbf|text|mathrm|mathit|textrm|underline|mathsf|textit|emph|mbox|ensuremath)\s*"
    r"\{\s*([-+]?[0-9][0-9.,/]*|\\frac\{[0-9]+\}\{[0-9]+\})\s*\}"
)
_NUMBER_IN_TEXT = re.compile(
    r"\\(?:text\w{0,9}|mathrm|mathbf|mbox)\{\s{0,9}(-?\\?\$?[0-9][0-9.,/:]{0,30})"
    r"(?:\s|\\ |~){1,9}([A-Za-z][A-Za-z ./]{0,60}?)\s{0,9}\}"
)
_END_OF_PROOF = re.compile(r"\\(?:blacksquare|square|Box|qed|checkmark)(?![a-zA-Z])\s*\Z|\A\s*\\checkmark(?![a-zA-Z])")
_DOLLARS_AROUND = re.compile(r"\A\$+|(?<!\\)\$+\Z")
_ORDINAL = re.compile(r"(?<=[0-9])\s*\^\{?\s*\\text\{\s*(?:st|nd|rd|th)\s*\}\s*\}?\Z")
_SECOND_UNIT = re.compile(r"(?<=[0-9}])\s*\\text\{\s*([a-zA-Z]+),?\s+and\s*\}(?=\s*[0-9])")
"""The first unit of 2 hours and 30 minutes."""
_ALL_REAL = re.compile(r"\\text\{\s*all real numbers\s*\}", re.IGNORECASE)
_LETTERS_IN_TEXT = re.compile(r"\\text\{\s*([A-Z](?:\s*,\s*[A-Z])+)\s*\}")
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]*)\.([0-9]*)"
    r"(?:\\(?:overline|bar|overbar|dot)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))"
    r"(?:([0-9]*)\\dot\s*(?:\{([0-9])\}|([0-9])))?|\(([0-9]+)\))(?![0-9])"
)
_DOTTED = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]{2,60})\s*(?:\\[lc]?dots\b|\.\.\.)(?!\s*[0-9,+])")
_DOTS = re.compile(r"\\(?:dots[cbmio]?|cdots|hdots)(?![a-zA-Z])|(?<!\.)\.\.\.(?!\.)")
_REPLACED = r"""
    \varnothing=\emptyset \dfrac=\frac \tfrac=\frac \cfrac=\frac \dbinom=\binom \tbinom=\binom \leqslant=\le
    \geqslant=\ge \gt=> \lt=< \leq=\le \geq=\ge \vee=\text{_or_} \lor=\text{_or_} \wedge=\text{_and_} \land=\text{_and_}
    \not==\neq_ \not\in=\notin \langle=( \rangle=) \lnot=\neg \lbrace=\{ \rbrace=\} \lbrack=[ \rbrack=]
    \mbox=\text \textnormal=\text
    {:}=: \degree=^\circ ^{\circ}=^\circ ^{\prime}=' ^\prime=' \space=_ \imath=i \uppi=\pi
"""
"""Commands, and after "=" commands that mean the same; _ is a space."""
_REPLACEMENTS = tuple(
    (old, re.compile(re.escape(old) + ("(?![a-zA-Z])" if old[-1].isalpha() else "")), new.replace("_", " "))
    for old, _, new in (pair.rpartition("=") for pair in _REPLACED.split())
)


def in_latex_signs(text: str) -> str:
    """Returns the text with the signs of Unicode written in LaTeX: ½, °, ², √, ∞, −, ·, π, full-width digits."""
    if text.isascii():
        return text
    text = _THIN_GROUP.sub("", text)
    text = _SPACES.sub(" ", _INVISIBLE.sub("", text))
    text = _VULGAR.sub(_fraction, text)
    text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{found[0].translate(_SUBSCRIPTS)}}}", text)
    text = _STYLED_SIGNS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = _DASH.sub("-", text).translate(_TABLE)
    return _ROOT.sub(_root, text)


def _fraction(found: re.Match[str]) -> str:
    top, bottom = unicodedata.normalize("NFKC", found[0]).split("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}"


def _root(found: re.Match[str]) -> str:
    root = "\\sqrt" if found[1] == "√" else found[1]
    if found[2]:
        return root + "{"
    radicand = found[3] or found[4]
    return f"{root}{{{radicand}}}" if radicand else root


def in_common_notation(latex: str) -> str:
    """Returns an answer in the notation for comparison: without spacing, separators of thousands and styles, and with
    exact numbers for repeating decimals and 1e3. A single upright letter is a letter, unless it follows a number like a
    unit."""
    latex = _THIN_GROUP.sub("", in_latex_signs(_WIDE.sub("  ", latex)))
    latex = _DECIMAL_COMMA.sub(r"\1.", latex)
    latex = _SPACING.sub(" ", _SIZES.sub("", latex))
    latex = latex.replace("\\not =", "\\not=").replace("{-}", "-").replace("{+}", "+")
    latex = _SPACE_GROUPS.sub(lambda found: found[0].replace(" ", ""), latex)
    for old, pattern, new in _REPLACEMENTS:
        if old in latex:
            latex = pattern.sub(new.replace("\\", r"\\"), latex)
    latex = _with_letters_in_braces(latex)
    latex = _DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", latex)
    latex = _STYLED.sub(r"\1", _without_style(latex))
    latex = _NUMBER_IN_TEXT.sub(r"\1\\text{ \2}", latex)
    latex = re.sub(r"\\text\s*\{\s*\}", " ", latex)
    latex = _POWER_OF_TEN.sub(lambda found: format(Decimal(found[0]), "f"), latex)
    latex = _REPEATING.sub(_repeating, latex)
    latex = _DOTTED.sub(_dotted, latex)
    latex = _MIXED.sub(_mixed, latex)
    latex = _DOTS.sub(r"\\ldots ", latex)
    latex = _ALL_REAL.sub(r"\\mathbb{R}", latex)
    latex = _SECOND_UNIT.sub(r"\\text{ \1 }", _ORDINAL.sub("", latex))
    latex = numerals.in_signs(latex)
    latex = without_marks(without_end_of_proof(latex))
    return re.sub(r"\s*,\s*", ",", found[1]) if (found := _LETTERS_IN_TEXT.fullmatch(latex)) else latex


def without_end_of_proof(latex: str) -> str:
    """Returns LaTeX without the box or tick that ends a proof."""
    return _END_OF_PROOF.sub("", latex).strip()


def _without_style(latex: str) -> str:
    """Returns an answer without colors, type sizes, announcing words, and a style around the whole answer."""
    latex = _ANNOUNCING.sub("", _TYPE.sub(" ", latex)).strip().strip("`*").strip()
    if (found := _WHOLE.fullmatch(latex)) and len(found[1]) > 1:
        return found[1]
    return latex


def _with_letters_in_braces(latex: str) -> str:
    """Returns an answer with \\mathrm e as \\mathrm{e}, Greek letters and functions in no style, and \\text{or}."""
    if "pi" in latex:
        latex = _PI.sub(r"\\pi ", latex)
    if "\\" not in latex:
        return latex
    latex = _WITHOUT_BRACES.sub(r"\1{\2}", latex)
    latex = _UPRIGHT_GREEK.sub(r"\1\2 ", _UPRIGHT_FUNCTION.sub(r"\\\1 ", latex))
    return _EITHER.sub("", _JOINT.sub(r"\\text{\1}", latex))


def with_letters(latex: str) -> str:
    """Returns LaTeX with single upright letters as letters: \\mathrm{i}, \\text{e}, \\mathrm{d}x."""
    return _SWITCHED_LETTER.sub(r"{\1}", _UPRIGHT_LETTER.sub(r" \1 ", latex))


def without_marks(latex: str) -> str:
    """Returns LaTeX without the period, comma or semicolon after it, and without quotation marks around it."""
    latex = _DOLLARS_AROUND.sub("", latex.strip()).strip()
    while latex and (latex[-1] in ".,;:" or latex.endswith("\\\\")) and not latex.endswith("\\ldots"):
        latex = latex.removesuffix("\\\\") if latex.endswith("\\\\") else latex[:-1]
        latex = latex.rstrip()
    for mark in ('"', "``", "'"):
        closing = "''" if mark == "``" else mark
        if len(latex) > 2 and latex.startswith(mark) and latex.endswith(closing) and latex.count(mark) <= 2:
            latex = latex[len(mark) : -len(closing)].strip()
    return latex


def _mixed(found: re.Match[str]) -> str:
    """Rewrites 11 5/6. A fraction above 1 after a whole number is not a part of it."""
    whole, top, bottom = found.groups()
    return f"{whole}\\frac{{{top}}}{{{bottom}}}" if int(top) < int(bottom) else found[0]


def _repeating(found: re.Match[str]) -> str:
    whole, before, group, digit, between, last, last_digit, bracketed = found.groups(default="")
    period = (group or digit) + between + (last or last_digit) + bracketed
    return _as_fraction(whole, before, period)


def _dotted(found: re.Match[str]) -> str:
    """Rewrites 0.333... and 0.1212..., whose period occurs at least twice up to the end."""
    digits = found[2]
    for length in range(1, len(digits) // 2 + 1):
        period = digits[-length:]
        head = digits.removesuffix(period)
        while head.endswith(period):
            head = head.removesuffix(period)
        repeated = (len(digits) - len(head)) // length
        if repeated * length >= 3 and repeated >= 2 and len(head) <= 2:
            return _as_fraction(found[1], head, period)
    return found[0]


def _as_fraction(whole: str, before: str, period: str) -> str:
    scale = 10 ** len(before)
    nines = 10 ** len(period) - 1
    value = Fraction(int((whole + before) or "0"), scale) + Fraction(int(period), nines * scale)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)
