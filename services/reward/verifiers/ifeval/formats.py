"""Constraints on layout, case, punctuation and language: `detectable_*:*`, `change_case:*`, `punctuation:*`,
`language:*`."""

import re
from collections.abc import Callable

from services.reward.common.json_text import is_json
from services.reward.common.language import is_language
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences

# A line that starts with two stars is emphasis, not a bullet. A line of dashes counts as one bullet.
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-.*$", re.MULTILINE)
_STRICT_BULLET = re.compile(r"^[^\S\n]*[*-][^\S\n]+\S", re.MULTILINE)
_SINGLE_STARRED = re.compile(r"\*[^\n*]*\*")
_DOUBLE_STARRED = re.compile(r"\*\*([^\n*]*)\*\*")
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
_FENCES = ("```json", "```Json", "```JSON", "```")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def placeholders(response: str, arguments: Arguments) -> bool:
    """Returns whether there are at least `num_placeholders` texts in [brackets], each within a line. With
    `strict_wording`, blank texts do not count."""
    wanted = arguments.number("num_placeholders")
    found = bracketed(response)
    return len([text for text in found if text.strip()] if arguments.strict_wording else found) >= wanted


def postscript(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains `postscript_marker`, ignoring case. With `strict_wording`, the marker must
    begin a line."""
    marker = arguments.text("postscript_marker")
    expression = _POSTSCRIPTS.get(marker)
    if arguments.strict_wording:
        expression = rf"^[^\S\n]*(?:{expression or re.escape(marker.lower())})"
    elif expression is None:
        expression = marker.lower()
    pattern = arguments.expression("postscript_marker", expression, flags=re.MULTILINE)
    return pattern.search(response.lower()) is not None


def bullets(response: str, arguments: Arguments) -> bool:
    """Returns whether exactly `num_bullets` lines begin with * or -. With `strict_wording`, white space and some text
    must follow the mark."""
    wanted = arguments.number("num_bullets")
    patterns = [_STRICT_BULLET] if arguments.strict_wording else [_STAR_BULLET, _DASH_BULLET]
    return sum(1 for pattern in patterns for _ in pattern.finditer(response)) == wanted


def constrained_response(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains a sentence of `_CHOICES`; with `strict_wording`, and nothing else."""
    if arguments.strict_wording:
        return response.strip() in _CHOICES
    return any(choice in response for choice in _CHOICES)


def highlights(response: str, arguments: Arguments) -> bool:
    """Returns whether at least `num_highlights` texts are marked *like this* or **like this**, each within a line and
    not blank."""
    wanted = arguments.number("num_highlights")
    single = sum(1 for match in _SINGLE_STARRED.finditer(response) if match[0].strip("*").strip())
    double = sum(1 for match in _DOUBLE_STARRED.finditer(response) if match[1].strip())
    return single + double >= wanted


def sections(response: str, arguments: Arguments) -> bool:
    """Returns whether `section_spliter`, followed by a number, occurs at least `num_sections` times; with
    `strict_wording`, exactly that often."""
    spliter, wanted = arguments.text("section_spliter"), arguments.number("num_sections")
    if arguments.strict_wording:
        spliter = re.escape(spliter)
    marks = arguments.expression("section_spliter", rf"{spliter}\s?\d+")
    found = sum(1 for _ in marks.finditer(response))
    return found == wanted if arguments.strict_wording else found >= wanted


def json_format(response: str, arguments: Arguments) -> bool:
    """Returns whether the whole response is JSON, in a code fence or not."""
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    return is_json(text.removesuffix("```").strip())


def title(response: str, arguments: Arguments) -> bool:
    """Returns whether a line contains <<a title>> that is not blank."""
    return any(map(_is_titled, response.split("\n")))


def sentence_hyphens(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is its sentences joined by hyphens, with no white space around the hyphens. Compares
    up to the end of the shorter list, parts or sentences; with `strict_wording`, both must have the same length."""
    parts, sentences = response.split("-"), ruled_sentences(response.replace("-", " "))
    same = all(part == sentence for part, sentence in zip(parts, sentences, strict=False))
    return same and (len(parts) == len(sentences) or not arguments.strict_wording)


def square_brackets(response: str, arguments: Arguments) -> bool:
    """Returns whether every word is [in] [brackets]."""
    return all(word.startswith("[") and word.endswith("]") for word in response.split())


def bigrams(response: str, arguments: Arguments) -> bool:
    """Returns whether the words come in pairs <<like this>>. Ignores a single last word, unless `strict_wording`."""
    words = response.split()
    if arguments.strict_wording and len(words) % 2:
        return False
    pairs = zip(words[::2], words[1::2], strict=False)
    return all(first.startswith("<<") and second.endswith(">>") for first, second in pairs)


def _is_titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end and bool(line[start:end].lstrip("<").rstrip(">").strip())


def bracketed(text: str) -> list[str]:
    """Returns the texts in [brackets], each within a line and up to the first closing bracket."""
    found = []
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            found.append(line[start + 1 : end])
            start = line.find("[", end)
    return found


# Text in no detectable language passes the next three; with `strict_wording`, it does not.


def english_capitals(response: str, arguments: Arguments) -> bool:
    return response.isupper() and is_language(response, "en", undetectable=not arguments.strict_wording)


def english_lowercase(response: str, arguments: Arguments) -> bool:
    return response.islower() and is_language(response, "en", undetectable=not arguments.strict_wording)


def response_language(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is in `language`, a code such as "de"."""
    return is_language(response, arguments.language("language"), undetectable=not arguments.strict_wording)


def lacks(mark: str) -> Callable[[str, Arguments], bool]:
    """Returns the constraint that a response does not contain a mark, not even in a number."""
    return lambda response, arguments: mark not in response
