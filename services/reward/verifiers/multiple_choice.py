"""A letter among choices."""

import re
import unicodedata
from collections import deque
from typing import Any, Literal

from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.section import Section

# What may stand around a letter, and means nothing: quotation marks, tags of HTML, LaTeX's \( and \text{.
_DECORATION = re.compile(r"[\"“”‘`]|</?(?:b|em|i|strong)>|\\[()\[\]]|\\(?:text\w{0,9}|mathrm|mathbf)(?=\s{0,9}\{)")
# A capital is a choice unless a word or a formula goes on; "A" and "I" also begin sentences.
_CAPITAL = (
    r"([A-Z])(?![A-Za-z0-9]|['’][a-z]|[ \t]?[=+^]"
    r"|(?<=[AI])[ \t](?!(?:and|as|because|but|by|due|for|from|given|if|in|is|not|or|since|which|with"
    r"|(?<=A[ \t])(?:according|again|correct[.!]?(?:\n|\Z)|here|instead|only|so|that|then|though|when|while(?! loop)))"
    r"(?:\b|\Z))[a-z])"
)
# A lower-case letter may be an article, unless something closes it.
_LETTER = rf"[({{\[*_\s$]{{0,9}}(?:{_CAPITAL}|([a-z])(?=\s{{0,9}}(?:[)\].:,;*}}$]|\n|\Z)))"
_NOUN = r"(?i:(?:[a-z]{2,12}ly\s|either\s|the\s)?(?:option\s|choice\s|letter\s|answer\s)?)"
# More letters after the chosen one, up to the end of the phrase: "B or C", "(A), (B).", "A B C D". The letter in "B) x"
# is what option B says.
_MORE_LETTERS = (
    r"(?:(?:[)\]}*_$]{0,9}(?:[ \t]{0,9}(?:[,/;&]|\b(?:or|and)\b)(?:[ \t]{0,9}(?:or|and)\b)?|[ \t]{1,9}(?=[(\[*_$]))"
    r"|[ \t]{1,9})"
    r"[(\[*_$ \t]{0,9}(?:(?:option|choice)[ \t])?[A-Za-z](?![A-Za-z0-9'’])){1,25}(?=[)\]*_$ \t]{0,9}(?:[.}\n]|\Z))"
)
# Where a letter, or several, end their phrase: "option A fails" does not choose A.
_PHRASE_ENDS = rf"(?={_MORE_LETTERS}|\)\s[^a-z]|[)\]}}*_$]{{0,9}}\s{{0,9}}(?:[.,;:!?\n/&(]|\Z|(?:because|since|as)\b))"
# The rest of a clause after the word that denies it.
_CLAUSE = r"(?:(?!\b(?:so|thus|hence|therefore|but|then|because|since|as|and|while)\b)[^.,;:!?\n]){0,40}\Z"
_NOT = r"\b(?:not|cannot|never)\b|n['’]t\b"
_IS = r"(?i:is|(?:would|must|should|will)\s+be)"

_FIRST = re.compile(_LETTER)
_ANNOUNCED = re.compile(
    rf"\b(?i:answer|ans)[*_\s]{{0,9}}(?:{_IS}\b)?[*_\s]{{0,9}}(?i:most\s)?[-:=]?\s{{0,9}}{_NOUN}{_LETTER}"
)
_CLAIMED = re.compile(
    r"\b(?:(?i:choose|pick|select|say|leaves|go\s+with|going\s+with|it\s+is|it['’]s|it\s+must\s+be)"
    r"|(?i:so|thus|hence|therefore)(?!,?\sI\b)"
    rf"|(?i:choice|option|solution|one)(?:(?:\s[a-z]{{1,12}})?\s{_IS}|:)),?:?\s{_NOUN}{_LETTER}{_PHRASE_ENDS}"
    r"|(?<!nor )(?<![A-Za-z'’])([A-Z])[)\]}*_$]{0,9}\s{1,9}is\s(?:the\s)?(?:correct|right|best|answer)\b"
)
_DENIED = re.compile(rf"(?i)(?:{_NOT}|\b(?:if|suppose|assume|might|whether)\b){_CLAUSE}")
_OPTION = re.compile(rf"\b(?i:option|choice)\s{_LETTER}")
_OPTION_ENDS = re.compile(rf"{_PHRASE_ENDS}|(?=\))")
# Options that the text excludes: "rule out option A", "option A, the first one, is clearly wrong", "option A fails".
# Not "option A) cannot be known", where that is what option A says.
_EXCLUDED_BEFORE = re.compile(
    rf"(?i)(?:{_NOT}|\b(?:rul(?:e|es|ed|ing)\sout|(?:eliminat|exclud|reject|discard)\w+)\b){_CLAUSE}"
)
_THEN = r"(?:(?<=\([A-Za-z])\))?[\]}*_$]{0,9}(?:,[^.,;\n]{1,60},)?\s"
_EXCLUDED_AFTER = re.compile(
    rf"{_THEN}(?:\w{{2,12}}ly\s)?(?:(?:fails|contradicts|violates|cannot)\b|(?:do|does|did|can|could)(?:\snot\b|n['’]t\b)"
    r"|(?:is|are|was|were|seems|looks)(?:n['’]t\b|(?:\s(?!not)\w{2,12}ly)?\s(?:not|wrong|incorrect|false|invalid"
    r"|impossible|unlikely|out|too|ruled|eliminated|excluded)\b))"
)
_VERB = re.compile(rf"{_THEN}(?!and\b|or\b)[a-z]")
_STANDING = re.compile(
    r"^[ \t]{0,9}\*{0,2}([A-Z])(?:[).:*,]|[ \t]{1,9}[-–—][ \t]|[ \t]{0,9}$)|\(([A-Z])\)|\*\*([A-Z])\*\*", re.MULTILINE
)
_ALONE = re.compile(r"[^A-Za-z]*[A-Za-z](?:[^A-Za-z]+(?:(?:or|and)[^A-Za-z]+)?[A-Za-z](?![A-Za-z]))*[^A-Za-z]*")
_BOX = "\\boxed{"
_MORE = re.compile(_MORE_LETTERS)
_SINGLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")


class MultipleChoiceOptions(Section):
    strict: bool = False
    """Accept only a marked answer: in a box, in <answer> tags, or after "answer is" or "answer:"."""
    values: Literal["unit", "loose", "soft", "strict"] = "unit"
    """Values of a right letter in a box, a right one elsewhere, a wrong one in a box, and the rest: 1, 1, 0, 0
    (`unit`); or those of ROLL's crossthinkqa: 1, 1, -1, -1 (`loose`), 1, 0.5, -0.5, -1 (`soft`), 1, -1, -1, -1
    (`strict`)."""


def verify(completion: str, label: Any, options: MultipleChoiceOptions = MultipleChoiceOptions()) -> Verdict:
    """Compares the chosen letter with the label's.

    The choice is the first of these that the completion has: the letter in the last <answer>...</answer>, in the last
    box, after the last "answer is" or "answer:"; unless `strict`, after the last "I choose", "it is", "so" and the like
    or before "is correct", unless the clause denies it or begins with "if" or the like; after "option" or "choice", at
    the end of a phrase or where others are excluded; written as a choice, "(B)", "**B**", or "B." and "B)" at the start
    of a line; or the only letter of the text. If several options are named in one of these last ways and not excluded,
    none is chosen, unless the last has been named before. Several letters in one position, "B or C", are all chosen.
    Label: a letter with or without parentheses, or a list of accepted ones.
    Value: 1 if each chosen letter is the label's, in any case, else 0; `values` has others.
    """
    wanted = {_wanted(text) for text in acceptable_texts(label)}
    text = unicodedata.normalize("NFKC", completion)
    letters = _choice(text, options.strict)
    is_right = bool(letters) and wanted.issuperset(letters)
    return Verdict(
        _VALUES[options.values][is_right, _BOX in text], letters or "no choice", "".join(sorted(set(letters)))
    )


_VALUES = {
    "unit": {(True, True): 1.0, (True, False): 1.0, (False, True): 0.0, (False, False): 0.0},
    "loose": {(True, True): 1.0, (True, False): 1.0, (False, True): -1.0, (False, False): -1.0},
    "soft": {(True, True): 1.0, (True, False): 0.5, (False, True): -0.5, (False, False): -1.0},
    "strict": {(True, True): 1.0, (True, False): -1.0, (False, True): -1.0, (False, False): -1.0},
}
"""Value by whether the letter is right, and whether the text has a box."""


def _wanted(label: str) -> str:
    letter = re.fullmatch(r"\s*(?:\\text\{)?[\(\[]?\s*([A-Za-z])\s*[\)\].:]?\}?\s*", label)
    if not letter:
        raise Unscorable(f"the label must be the letter of a choice (found: {label!r:.80})")
    return letter[1].upper()


def _choice(text: str, strict: bool) -> str:
    """Returns the chosen letters, in upper case, or an empty text."""
    tagged = last_between(text, "<answer>", "</answer>")
    if tagged is None and _BOX in text:
        tagged = text.rpartition(_BOX)[2]
    if tagged is not None:
        tagged = _DECORATION.sub("", tagged)
        if found := _FIRST.match(tagged):
            return _with_more(found, tagged)
    plain = _DECORATION.sub("", text) if tagged is None else tagged
    if found := _last(_ANNOUNCED, plain) or (None if strict else _last(_CLAIMED, plain, unless=_DENIED)):
        return _with_more(found, plain)
    return "" if strict else _named(plain)


def _named(text: str) -> str:
    """Returns the letter that the text names as a choice without saying that it chooses it."""
    options, standing = list(_OPTION.finditer(text)), list(_STANDING.finditer(text))
    excluded = {_letter(found) for found in options if _EXCLUDED_AFTER.match(text, found.end())}
    excluded |= {_letter(found) for found in options + standing if _is_after(_EXCLUDED_BEFORE, found, text)}
    options, standing = ([found for found in named if _letter(found) not in excluded] for named in (options, standing))
    if options and not _is_listing(options):
        end = options[-1].end()
        if _OPTION_ENDS.match(text, end) or (excluded and _VERB.match(text, end)):
            return _with_more(options[-1], text)
    if standing:
        return "" if _is_listing(standing) else _with_more(standing[-1], text)
    return "".join(_SINGLE.findall(text)).upper() if _ALONE.fullmatch(text) else ""


def _is_listing(named: list[re.Match[str]]) -> bool:
    """Returns whether several options are named, and the last of them only once."""
    letters = [_letter(found) for found in named]
    return len(set(letters)) > 1 and letters.count(letters[-1]) == 1


def _with_more(found: re.Match[str], text: str) -> str:
    """Returns the letter found and those named with it."""
    more = _MORE.match(text, found.end(found.lastindex or 0))
    others = _SINGLE.findall(more[0]) if more else []
    return "".join([_letter(found), *others]).upper()


def _letter(found: re.Match[str]) -> str:
    return found[found.lastindex or 0]


def _last(pattern: re.Pattern[str], text: str, unless: re.Pattern[str] | None = None) -> re.Match[str] | None:
    """Returns the last match; with `unless`, the last whose letter does not stand right after a match of that."""
    matches = (found for found in pattern.finditer(text) if unless is None or not _is_after(unless, found, text))
    found = deque(matches, maxlen=1)
    return found[0] if found else None


def _is_after(pattern: re.Pattern[str], found: re.Match[str], text: str) -> bool:
    start = found.start(found.lastindex or 0)
    return pattern.search(text, max(start - 60, 0), start) is not None


VERIFIER = Verifier(
    verify, values="1 or 0; -1 to 1 with `values`", options=MultipleChoiceOptions, same_answers="the same letters"
)
