"""The 25 functions of open-instruct's older labels, by name: one constraint per label.

They are simpler than the related constraints of `catalog.py` and differ from them: keywords are plain text and not
regular expressions, numbers are exact, and most comparisons are case-sensitive.
"""

import re

from services.reward.common.json_text import is_json
from services.reward.common.language import is_language
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.catalog import Constraint
from services.reward.verifiers.ifeval.formats import bracketed, lacks

_WORD = re.compile(r"\w+")
_CAPITALS = re.compile(r"\b[A-Z]+\b")
# White space after a mark that ends a sentence, but not after "Dr." or "e.g.".
_SENTENCE_BREAK = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=[.?!])\s")
_QUANTIFIERS = ("at least", "around", "at most")


def _in_quantity(count: int, arguments: Arguments, *, tolerance: int = 0) -> bool:
    """Compares a count with `N`. "around" allows a difference of `tolerance`; if 0, of a tenth of `N` or at least 1."""
    wanted, quantifier = arguments.number("N"), arguments.choice("quantifier", _QUANTIFIERS)
    if quantifier == "around":
        return abs(count - wanted) <= (tolerance or max(round(wanted * 0.1), 1))
    return count >= wanted if quantifier == "at least" else count <= wanted


def _word_constraint(response: str, arguments: Arguments) -> bool:
    """Compares the number of words, separated by white space, with `quantifier` and `N`."""
    return _in_quantity(len(response.split()), arguments)


def _sentence_constraint(response: str, arguments: Arguments) -> bool:
    return _in_quantity(1 + len(_SENTENCE_BREAK.findall(response)), arguments, tolerance=1)


def _capital_words(response: str, arguments: Arguments) -> bool:
    return _in_quantity(len(_CAPITALS.findall(response)), arguments)


def _keywords(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains every keyword in `keyword_list`, also inside words, ignoring case."""
    text = response.lower()
    return all(keyword.lower() in text for keyword in arguments.texts("keyword_list"))


def _keyword_frequency(response: str, arguments: Arguments) -> bool:
    """Returns whether `word` occurs exactly `N` times as a whole word, ignoring case."""
    word, wanted = arguments.text("word").lower(), arguments.number("N")
    return sum(match[0] == word for match in _WORD.finditer(response.lower())) == wanted


def _forbidden_words(response: str, arguments: Arguments) -> bool:
    """Returns whether none of `forbidden_words` occurs in any case: inside words too, unless `strict_wording`."""
    words = arguments.texts("forbidden_words")
    if arguments.strict_wording:
        return not any(arguments.pattern("forbidden_words", word).search(response) for word in words)
    text = response.lower()
    return not any(word.lower() in text for word in words)


def _paragraph_count(response: str, arguments: Arguments) -> bool:
    """Returns whether there are exactly `N` paragraphs, separated by * * *, none of them blank."""
    wanted = arguments.number("N")
    text = "\n".join(line.strip() for line in response.splitlines()).strip()
    found = text.split("* * *")
    return len(found) == wanted and all(part.strip() for part in found)


def _paragraphs(response: str, arguments: Arguments) -> bool:
    """Returns whether there are exactly `N` paragraphs, separated by blank lines, and paragraph `i`, counted from 1,
    begins with `first_word`."""
    wanted, nth = arguments.number("N", minimum=1), arguments.number("i", minimum=1)
    first_word = arguments.exact_text("first_word")
    if nth > wanted:
        raise arguments.invalid("i", f"must be at most N, {wanted}")
    found = response.split("\n\n")
    return len(found) == wanted and found[nth - 1].strip().startswith(first_word)


def _postscript(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains `postscript_marker`, in its case, with some text after it."""
    _, marker, rest = response.partition(arguments.text("postscript_marker"))
    return bool(marker and rest.strip())


def _bullet_points(response: str, arguments: Arguments) -> bool:
    """Returns whether exactly `N` lines begin with * or -. Emphasis at the start of a line counts too; with
    `strict_wording`, a space must follow the mark."""
    wanted = arguments.number("N")
    marks = ("* ", "- ") if arguments.strict_wording else ("*", "-")
    return sum(line.strip().startswith(marks) for line in response.split("\n")) == wanted


def _title(response: str, arguments: Arguments) -> bool:
    """Returns whether a line contains << and, after it, >>. With `strict_wording`, some text must lie in between."""
    for line in response.split("\n"):
        start = line.find("<<")
        end = line.find(">>", start + 2)
        if 0 <= start < end and (line[start + 2 : end].strip() or not arguments.strict_wording):
            return True
    return False


def _choice(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains one of `options`, also inside a word, in its case. With `strict_wording`,
    the response must contain nothing else."""
    options = arguments.texts("options")
    if arguments.strict_wording:
        return response.strip() in [option.strip() for option in options]
    return any(option in response for option in options)


def _highlighted_sections(response: str, arguments: Arguments) -> bool:
    """Returns whether there are at least `N` texts between two stars, each within a line."""
    wanted = arguments.number("N")
    return sum(line.count("*") // 2 for line in response.split("\n")) >= wanted


def _sections(response: str, arguments: Arguments) -> bool:
    """Returns whether `section_splitter` splits the response into exactly `N` parts. The part before the first splitter
    counts unless it is empty."""
    splitter, wanted = arguments.exact_text("section_splitter"), arguments.number("N")
    found = response.split(splitter)
    before = found[0].strip() if arguments.strict_wording else found[0]
    return len(found) - (not before) == wanted


def _two_responses(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is two different texts separated by ******; with `strict_wording`, neither blank."""
    parts = [part.strip() for part in response.split("******")]
    return len(parts) == 2 and parts[0] != parts[1] and (all(parts) or not arguments.strict_wording)


FUNCTIONS = {
    "validate_choice": Constraint(_choice, ("options",)),
    "validate_end": Constraint(lambda text, given: text.endswith(given.exact_text("end_phrase")), ("end_phrase",)),
    "validate_forbidden_words": Constraint(_forbidden_words, ("forbidden_words",)),
    "validate_frequency_capital_words": Constraint(_capital_words, ("N", "quantifier")),
    "validate_highlighted_sections": Constraint(_highlighted_sections, ("N",)),
    "validate_json_format": Constraint(lambda text, _: is_json(text)),
    "validate_lowercase": Constraint(lambda text, _: text == text.lower()),
    "validate_no_commas": Constraint(lacks(",")),
    "validate_paragraphs": Constraint(_paragraphs, ("N", "first_word", "i")),
    "validate_placeholders": Constraint(lambda text, given: len(bracketed(text)) >= given.number("N"), ("N",)),
    "validate_quotation": Constraint(lambda text, _: text.startswith('"') and text.endswith('"')),
    "validate_repeat_prompt": Constraint(
        lambda text, given: text.startswith(given.exact_text("original_prompt")), ("original_prompt",)
    ),
    "validate_response_language": Constraint(
        lambda text, given: is_language(text, given.language("language"), undetectable=False), ("language",)
    ),
    "validate_sections": Constraint(_sections, ("N", "section_splitter")),
    "validate_title": Constraint(_title),
    "validate_two_responses": Constraint(_two_responses),
    "validate_uppercase": Constraint(lambda text, _: text == text.upper()),
    "validate_word_constraint": Constraint(_word_constraint, ("N", "quantifier")),
    "verify_bullet_points": Constraint(_bullet_points, ("N",)),
    "verify_keyword_frequency": Constraint(_keyword_frequency, ("word", "N")),
    "verify_keywords": Constraint(_keywords, ("keyword_list",)),
    "verify_letter_frequency": Constraint(
        lambda text, given: text.count(given.letter("letter")) == given.number("N"), ("letter", "N")
    ),
    "verify_paragraph_count": Constraint(_paragraph_count, ("N",)),
    "verify_postscript": Constraint(_postscript, ("postscript_marker",)),
    "verify_sentence_constraint": Constraint(_sentence_constraint, ("N", "quantifier")),
}
