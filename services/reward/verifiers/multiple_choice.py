"""A letter among choices."""

import re
import unicodedata
from typing import Any, Literal

from services.reward.common.statements import is_conditional, is_stated
from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section

# Meaningless decoration around a letter: quotation marks, HTML tags, LaTeX's \( and \text{.
_DECORATION = re.compile(r"[\"“”‘`]|</?(?:b|em|i|strong)>|\\[()\[\]]|\\(?:text\w{0,9}|mathrm|mathbf)(?=\s{0,9}\{)")
# A capital is a choice unless a word or a formula continues after it. "A" and "I" also begin sentences.
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
# A choice with its text, in bold at the end of a line: "**C) nitrogen**".
_BOLD_CHOICE = (
    r"[).:]\s(?![^*\n]{0,80}(?:\b(?:not|wrong|false|incorrect|invalid|impossible|fails)\b|n['’]t\b))"
    r"[^*\n]{1,80}\*\*[.!]?[ \t]{0,9}(?:\n|\Z)"
)
# Where a letter, or several, end their phrase: "option A fails" does not choose A.
_PHRASE_ENDS = (
    rf"(?={_MORE_LETTERS}|\)\s[^a-z]|{_BOLD_CHOICE}"
    rf"|[)\]}}*_$]{{0,9}}\s{{0,9}}(?:[.,;:!?\n/&(]|\Z|(?:because|since|as)\b))"
)
# The rest of a clause, after the word that denies it.
_CLAUSE = r"(?:(?!\b(?:so|thus|hence|therefore|but|then|because|since|as|and|while)\b)[^.,;:!?\n]){0,40}\Z"
_NOT = r"\b(?:not|cannot|never)\b|n['’]t\b"
_IS = r"(?i:is|(?:would|must|should|will)\s+be)"

_FIRST = re.compile(_LETTER)
_BOXED = re.compile(rf"\\boxed\{{\s{{0,9}}{_NOUN}{_LETTER}(?=[^}}\n]{{0,200}}\}})")
_ANNOUNCED = re.compile(
    rf"\b(?i:answer|ans)[*_\s]{{0,9}}(?:{_IS}\b)?[*_\s]{{0,9}}(?i:most\s)?[-:=]?\s{{0,9}}{_NOUN}{_LETTER}"
)
_AMONG = (
    r"(?<!not,\s)(?<!not\s)(?i:(?:among|out\sof|of|from)\s(?:all\s)?(?:the|these)\s(?:\w{1,12}\s)?"
    r"(?:choices|options|answers|alternatives))"
)
_CLAIMED = re.compile(
    r"\b(?:(?i:choose|pick|select|say|leaves|leaving|go\s+with|going\s+with|it\s+is|it['’]s|it\s+must\s+be)"
    rf"|(?i:so|thus|hence|therefore)(?!,?\sI\b)(?:,?\s{_AMONG})?|{_AMONG}(?!,?\s\W?[A-Z]\W?,\s\W?[A-Z]\b)"
    rf"|(?i:choice|option|solution|one)(?:(?:\s[a-z]{{1,12}})?\s{_IS}|:)),?:?\s{_NOUN}{_LETTER}{_PHRASE_ENDS}"
    r"|(?<!nor )(?<![A-Za-z'’])([A-Z])[)\]}*_$]{0,9}\s{1,9}is\s(?:the\s)?(?:correct|right|best|answer)\b"
)
# "not B but C", and corrections: "No, C", "Wait, it is C", "Actually C", "but it is C".
_CONTRASTED = re.compile(
    rf"(?:\b(?:[Nn]ot|never)|n['’]t)\s{_NOUN}{_LETTER}(?:[,\s]{{1,3}}(?:or|and|nor)?\s?\(?[A-Z]\)?(?![A-Za-z])){{0,9}}[)\]}}*_$,;—–-]{{0,9}}\s{{0,3}}(?:but|rather|instead)[\s,]{{1,3}}"
    rf"(?:(?:rather|instead|it\sis|it['’]s)[\s,]{{1,3}})?{_NOUN}{_LETTER}{_PHRASE_ENDS}"
)
_AGAIN = (
    r"(?i:it\sis|it['’]s|it\swas|that['’]s|(?:the|my)\s(?:correct\s|right\s|real\s|final\s)?answer\s(?:is|should\sbe|must\sbe)|i\smeant?"
    r"|(?:it\s|that\s)?(?:should|must|has\sto|would)\sbe|is|i\s(?:choose|pick|select|say|think|meant)|wait|no|nope|actually|rather|sorry|instead"
    r"|make\s(?:that|it)|correction|choose|pick)"
)
_CORRECTED = re.compile(
    r"(?:\b(?i:yes|no|nope|wait|hold\son|apologies|rather|or\sbetter|edit|updated?|revised|my\s(?:mistake|bad)"
    r"|(?:strike|take)\sthat(?:\sback)?|let\sme\s(?:correct|fix|revise)(?:\s(?:that|it|this|myself))?"
    r"|chang(?:e|ed|ing)\smy\s(?:answer|mind)(?:\sto)?|actually|correction|corrected|sorry|oops|hmm+|or\srather|scratch\sthat|i\smeant?|make\s(?:that|it)"
    r"|on\ssecond\sthoughts?|instead|should\shave\sbeen|should\sbe)[\s,.:;!…—–-]{1,5}"
    rf"(?:{_AGAIN}[\s,.:;!…—–-]{{1,5}}){{0,3}}|\b(?i:but|however)[\s,]{{1,3}}(?:{_AGAIN}[\s,:]{{1,3}}){{1,3}})"
    rf"{_NOUN}{_LETTER}{_PHRASE_ENDS}"
)
_CORRECTIONS = re.compile(
    r"\b(?:but|however|no|nope|yes|wait|actually|correct|sorry|oops|hmm|rather|scratch|strike|take that|hold on"
    r"|apologies|edit|updat|revise|better|my bad|my mistake|chang|i mean|make|second thought|instead|should)"
)
"""Words in lower case, one of which every correction has. Searching for them first is quicker."""
_DENIED = re.compile(rf"(?i)(?:{_NOT}|\b(?:if|suppose|assume|might|whether)\b){_CLAUSE}")
_OPTION = re.compile(rf"\b(?i:option|choice)\s{_LETTER}")
_OPTION_ENDS = re.compile(rf"{_PHRASE_ENDS}|(?=\))")
# Options that the text excludes: "rule out option A", "option A, the first one, is clearly wrong", "option A fails".
# Not "option A) cannot be known", if that is the text of option A.
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
_MORE = re.compile(_MORE_LETTERS)
_MAX_STATEMENTS = 200
"""Most choices that are examined, from the end, among those that a text states, asks or denies."""
_SINGLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")


class MultipleChoiceOptions(Section):
    strict: bool = False
    """Accept only an answer in a box, in <answer> tags, or after "answer is" or "answer:", or a correction of such an
    answer."""
    values: Literal["unit", "loose", "soft", "strict"] = "unit"
    """Values of a right letter in a box, a right letter elsewhere, a wrong letter in a box, and anything else. `unit`
    gives 1, 1, 0, 0. The others are the values of ROLL's crossthinkqa: `loose` gives 1, 1, -1, -1, `soft` gives 1, 0.5,
    -0.5, -1, and `strict` gives 1, -1, -1, -1."""


def verify(completion: str, label: Any, options: MultipleChoiceOptions = MultipleChoiceOptions()) -> Verdict:
    """Compares the chosen letter with the label's.

    The choice is the letter in the last <answer>...</answer>. Without these tags it is the last letter that the text
    states: in a box; after "answer is" or "answer:"; as a correction, "No, C" or "not B but C"; unless `strict`, also
    after "I choose", "it is" and the like or before "is correct". A letter is not stated if the text denies, asks,
    supposes, quotes, calls false or takes it back. If the text states no letter, there is no choice with `strict`. Else
    it is the letter after "option" or "choice", at the end of a phrase or where others are excluded; a letter written
    as a choice, "(B)", "**B**", or "B." and "B)" at the start of a line; or the only letter of the text. If several
    options are named in one of these last ways and not excluded, none is chosen, unless the last has been named before.
    Several letters in one position, "B or C", are all chosen. Label: a letter with or without parentheses, or a list of
    letters. Value: 1 if each chosen letter is the label's, in any case, else 0; `values` changes these values.
    """
    wanted = {_wanted(text) for text in acceptable_texts(label)}
    text = unicodedata.normalize("NFKC", completion)
    letters = _choice(text, options.strict)
    is_right = bool(letters) and wanted.issuperset(letters)
    return Verdict(
        _VALUES[options.values][is_right, "\\boxed{" in text], letters or "no choice", "".join(sorted(set(letters)))
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
    text = _DECORATION.sub("", text)
    tagged = last_between(text, "<answer>", "</answer>")
    if tagged is not None:
        text = tagged
        if found := _FIRST.match(text):
            return _with_more(found, text)
    marked = sorted((found for pattern in (_BOXED, _ANNOUNCED) for found in pattern.finditer(text)), key=_end)
    # Text before the last marked choice cannot have the last choice.
    last = _last_stated(marked[-_MAX_STATEMENTS:], text)
    start = last.start() if last and not is_conditional(text, last.start()) else 0
    rest = text[start:].lower()
    others = list(_CORRECTED.finditer(text, start)) if _CORRECTIONS.search(rest) else []
    if any(word in rest for word in ("but", "rather", "instead")):
        others += _CONTRASTED.finditer(text, start)
    if strict:
        first = marked[0].end() if marked else len(text)
        others = [found for found in others if found.start() >= first]
    else:
        others += [found for found in _CLAIMED.finditer(text, start) if not _is_after(_DENIED, found, text)]
    said = sorted(marked + others, key=_end)[-_MAX_STATEMENTS:]
    if last := _last_stated(said, text):
        return _with_more(last, text)
    return "" if strict else _named(text, [found.span() for found in said])


def _last_stated(said: list[re.Match[str]], text: str) -> re.Match[str] | None:
    """Returns the last choice that the text states. A conditional choice counts only if there is no other."""
    conditional = None
    for found in reversed(said):
        if is_stated(text, found.start(), _end_of_letters(found, text)):
            if not is_conditional(text, found.start()):
                return found
            conditional = conditional or found
    return conditional


def _named(text: str, unstated: list[tuple[int, int]]) -> str:
    """Returns the letter that the text names as a choice without choosing it. Ignores places in `unstated`."""

    def matches(pattern: re.Pattern[str]) -> list[re.Match[str]]:
        found = pattern.finditer(text)
        return [one for one in found if not any(start < one.end() and one.start() < end for start, end in unstated)]

    options, standing = matches(_OPTION), matches(_STANDING)
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
    """Returns whether several options are named, and the last option only once."""
    letters = [_letter(found) for found in named]
    return len(set(letters)) > 1 and letters.count(letters[-1]) == 1


def _with_more(found: re.Match[str], text: str) -> str:
    """Returns the found letter, and the letters that are named with it."""
    more = _MORE.match(text, _end(found))
    others = _SINGLE.findall(more[0]) if more else []
    return "".join([_letter(found), *others]).upper()


def _letter(found: re.Match[str]) -> str:
    return found[found.lastindex or 0]


def _end(found: re.Match[str]) -> int:
    """Returns the end of the found letter."""
    return found.end(found.lastindex or 0)


def _end_of_letters(found: re.Match[str], text: str) -> int:
    """Returns the end of a match, or of the last letter that is named with its letter."""
    more = _MORE.match(text, _end(found))
    return max(found.end(), more.end() if more else 0)


def _is_after(pattern: re.Pattern[str], found: re.Match[str], text: str) -> bool:
    start = found.start(found.lastindex or 0)
    return pattern.search(text, max(start - 60, 0), start) is not None


VERIFIER = Verifier(
    verify, values="1 or 0; -1 to 1 with `values`", options=MultipleChoiceOptions, same_answers="the same letters"
)
