"""Constraints on what can be seen at a glance: `detectable_format:*` and `detectable_content:*`."""

import json
import re

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences

# A second star makes emphasis of a bullet; a line of dashes counts as one.
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-.*$", re.MULTILINE)
_STRICT_BULLET = re.compile(r"^[^\S\n]*[*-][^\S\n]+\S", re.MULTILINE)
_SINGLE_STARRED = re.compile(r"\*[^\n*]*\*")
_DOUBLE_STARRED = re.compile(r"\*\*([^\n*]*)\*\*")
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
_FENCES = ("```json", "```Json", "```JSON", "```")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def placeholders(response: str, given: Arguments) -> bool:
    """At least `num_placeholders` texts in [brackets], each within a line. Strictly worded: none of them blank."""
    wanted = given.number("num_placeholders")
    found = bracketed(response)
    return len([text for text in found if text.strip()] if given.strict_wording else found) >= wanted


def postscript(response: str, given: Arguments) -> bool:
    """`postscript_marker` is there, case aside. Strictly worded: it begins a line."""
    marker = given.text("postscript_marker")
    expression = _POSTSCRIPTS.get(marker)
    if given.strict_wording:
        expression = rf"^[^\S\n]*(?:{expression or re.escape(marker.lower())})"
    elif expression is None:
        expression = marker.lower()
    return given.expression("postscript_marker", expression, flags=re.MULTILINE).search(response.lower()) is not None


def bullets(response: str, given: Arguments) -> bool:
    """Exactly `num_bullets` lines that begin with * or -. Strictly worded: and a blank and something after it."""
    wanted = given.number("num_bullets")
    patterns = [_STRICT_BULLET] if given.strict_wording else [_STAR_BULLET, _DASH_BULLET]
    return sum(1 for pattern in patterns for _ in pattern.finditer(response)) == wanted


def constrained_response(response: str, given: Arguments) -> bool:
    """One of "My answer is yes." (no, maybe) is in it. Strictly worded: is all of it."""
    if given.strict_wording:
        return response.strip() in _CHOICES
    return any(choice in response for choice in _CHOICES)


def highlights(response: str, given: Arguments) -> bool:
    """At least `num_highlights` texts *so* or **so**, within a line and not blank."""
    wanted = given.number("num_highlights")
    single = sum(1 for match in _SINGLE_STARRED.finditer(response) if match[0].strip("*").strip())
    double = sum(1 for match in _DOUBLE_STARRED.finditer(response) if match[1].strip())
    return single + double >= wanted


def sections(response: str, given: Arguments) -> bool:
    """At least `num_sections` times `section_spliter` with a number after it. Strictly worded: exactly."""
    spliter, wanted = given.text("section_spliter"), given.number("num_sections")
    if given.strict_wording:
        spliter = re.escape(spliter)
    marks = given.expression("section_spliter", rf"{spliter}\s?\d+")
    found = sum(1 for _ in marks.finditer(response))
    return found == wanted if given.strict_wording else found >= wanted


def json_format(response: str, given: Arguments) -> bool:
    """All of it is JSON, in a code fence or not."""
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    return is_json(text.removesuffix("```").strip())


def title(response: str, given: Arguments) -> bool:
    """A line has <<a title>> that is not blank."""
    return any(_titled(line) for line in response.split("\n"))


def sentence_hyphens(response: str, given: Arguments) -> bool:
    """The parts between hyphens are the sentences, with no blanks around the hyphens.

    Parts are compared with sentences as far as both go; strictly worded there must be as many.
    """
    parts, sentences = response.split("-"), ruled_sentences(response.replace("-", " "))
    same = all(part == sentence for part, sentence in zip(parts, sentences, strict=False))
    return same and (len(parts) == len(sentences) or not given.strict_wording)


def square_brackets(response: str, given: Arguments) -> bool:
    """Every word is [in] [brackets]."""
    return all(word.startswith("[") and word.endswith("]") for word in response.split())


def bigrams(response: str, given: Arguments) -> bool:
    """Words come in pairs <<like this>>. A last word without a second may be anything, strictly worded nothing."""
    words = response.split()
    if given.strict_wording and len(words) % 2:
        return False
    pairs = zip(words[::2], words[1::2], strict=False)
    return all(first.startswith("<<") and second.endswith(">>") for first, second in pairs)


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end and bool(line[start:end].lstrip("<").rstrip(">").strip())


def bracketed(text: str) -> list[str]:
    """What stands in [brackets], each within a line, the first closing bracket ending it."""
    found = []
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            found.append(line[start + 1 : end])
            start = line.find("[", end)
    return found


def is_json(text: str) -> bool:
    """Whether a parser takes it. One nested deeper than the parser goes, about 1,000 levels, is not."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
