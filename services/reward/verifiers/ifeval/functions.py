"""The 25 functions of open-instruct's older labels, by name: one constraint a label.

They are simpler than the constraints of `catalogue.py` that share their subject, and differ from them: keywords are
text and not expressions, numbers are exact, most compare with the case as it is.
"""

import re

from services.reward.language import is_language
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.catalogue import Constraint
from services.reward.verifiers.ifeval.formats import bracketed, is_json

_WORD = re.compile(r"\w+")
_CAPITALS = re.compile(r"\b[A-Z]+\b")
# White space after a mark that ends a sentence: not after "Dr." or "e.g.".
_SENTENCE_BREAK = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=[.?!])\s")
_QUANTIFIERS = ("at least", "around", "at most")


def _in_quantity(count: int, given: Arguments, *, tolerance: int) -> bool:
    wanted, quantifier = given.number("N"), given.choice("quantifier", _QUANTIFIERS)
    if quantifier == "around":
        return abs(count - wanted) <= tolerance
    return count >= wanted if quantifier == "at least" else count <= wanted


def _tenth(given: Arguments) -> int:
    return max(round(given.number("N") * 0.1), 1)


def _keywords(response: str, given: Arguments) -> bool:
    """Each of `keyword_list` is in it, also inside a word, case aside."""
    text = response.lower()
    return all(keyword.lower() in text for keyword in given.texts("keyword_list"))


def _keyword_frequency(response: str, given: Arguments) -> bool:
    """`word` is exactly `N` times a whole word, case aside."""
    word, wanted = given.text("word").lower(), given.number("N")
    return sum(match[0] == word for match in _WORD.finditer(response.lower())) == wanted


def _forbidden_words(response: str, given: Arguments) -> bool:
    """None of `forbidden_words` is in it, also inside a word, case aside; strictly worded: as a whole word."""
    words = given.texts("forbidden_words")
    if given.strict_wording:
        return not any(given.pattern("forbidden_words", word).search(response) for word in words)
    text = response.lower()
    return not any(word.lower() in text for word in words)


def _letter_frequency(response: str, given: Arguments) -> bool:
    """`letter` is exactly `N` times in it, with its case."""
    letter, wanted = given.letter("letter"), given.number("N")
    return response.count(letter) == wanted


def _language(response: str, given: Arguments) -> bool:
    """It is in `language`, a code such as "de"."""
    return is_language(response, given.language("language"), undetectable=False)


def _paragraph_count(response: str, given: Arguments) -> bool:
    """Exactly `N` paragraphs between * * *, none of them blank."""
    wanted = given.number("N")
    text = "\n".join(line.strip() for line in response.splitlines()).strip()
    found = text.split("* * *")
    return len(found) == wanted and all(part.strip() for part in found)


def _word_constraint(response: str, given: Arguments) -> bool:
    """`quantifier` `N` words between blanks; "around" allows a tenth more or fewer, at least one."""
    return _in_quantity(len(response.split()), given, tolerance=_tenth(given))


def _sentence_constraint(response: str, given: Arguments) -> bool:
    """`quantifier` `N` sentences; "around" allows one more or fewer."""
    return _in_quantity(1 + sum(1 for _ in _SENTENCE_BREAK.finditer(response)), given, tolerance=1)


def _paragraphs(response: str, given: Arguments) -> bool:
    """Exactly `N` paragraphs between blank lines, and number `i`, from 1, begins with `first_word`."""
    wanted, nth, first_word = given.number("N", least=1), given.number("i", least=1), given.exact_text("first_word")
    if nth > wanted:
        raise given.invalid("i", f"must be at most N, {wanted}")
    found = response.split("\n\n")
    return len(found) == wanted and found[nth - 1].strip().startswith(first_word)


def _postscript(response: str, given: Arguments) -> bool:
    """`postscript_marker` is in it, with its case, and something after it."""
    marker = given.text("postscript_marker")
    start = response.find(marker)
    return start >= 0 and bool(response[start + len(marker) :].strip())


def _placeholders(response: str, given: Arguments) -> bool:
    """At least `N` texts in [brackets], each within a line."""
    wanted = given.number("N")
    return len(bracketed(response)) >= wanted


def _bullet_points(response: str, given: Arguments) -> bool:
    """Exactly `N` lines that begin with * or -, emphasis and all; strictly worded with a blank after that."""
    wanted = given.number("N")
    marks = ("* ", "- ") if given.strict_wording else ("*", "-")
    return sum(line.strip().startswith(marks) for line in response.split("\n")) == wanted


def _title(response: str, given: Arguments) -> bool:
    """A line has << and, after it, >>; strictly worded with something in between."""
    for line in response.split("\n"):
        start = line.find("<<")
        end = line.find(">>", start + 2)
        if 0 <= start < end and (line[start + 2 : end].strip() or not given.strict_wording):
            return True
    return False


def _choice(response: str, given: Arguments) -> bool:
    """One of `options` is in it, also inside a word, with its case; strictly worded: is all of it."""
    options = given.texts("options")
    if given.strict_wording:
        return response.strip() in [option.strip() for option in options]
    return any(option in response for option in options)


def _highlighted_sections(response: str, given: Arguments) -> bool:
    """At least `N` texts between two stars, each within a line."""
    wanted = given.number("N")
    return sum(line.count("*") // 2 for line in response.split("\n")) >= wanted


def _sections(response: str, given: Arguments) -> bool:
    """Exactly `N` parts between `section_splitter`, one before the first included unless it is empty."""
    splitter, wanted = given.exact_text("section_splitter"), given.number("N")
    found = response.split(splitter)
    before = found[0].strip() if given.strict_wording else found[0]
    return len(found) - (not before) == wanted


def _json_format(response: str, given: Arguments) -> bool:
    """All of it is JSON."""
    return is_json(response)


def _repeat_prompt(response: str, given: Arguments) -> bool:
    """It begins with `original_prompt`, letter for letter."""
    return response.startswith(given.exact_text("original_prompt"))


def _two_responses(response: str, given: Arguments) -> bool:
    """Two different texts with ****** in between; strictly worded neither is blank."""
    parts = [part.strip() for part in response.split("******")]
    return len(parts) == 2 and parts[0] != parts[1] and (all(parts) or not given.strict_wording)


def _uppercase(response: str, given: Arguments) -> bool:
    """No small letter is in it."""
    return response == response.upper()


def _lowercase(response: str, given: Arguments) -> bool:
    """No capital is in it."""
    return response == response.lower()


def _capital_words(response: str, given: Arguments) -> bool:
    """`quantifier` `N` words all in capitals A to Z; "around" allows a tenth more or fewer, at least one."""
    return _in_quantity(sum(1 for _ in _CAPITALS.finditer(response)), given, tolerance=_tenth(given))


def _end(response: str, given: Arguments) -> bool:
    """It ends with `end_phrase`, letter for letter."""
    return response.endswith(given.exact_text("end_phrase"))


def _quotation(response: str, given: Arguments) -> bool:
    """It begins and ends with a double quote."""
    return response.startswith('"') and response.endswith('"')


def _no_commas(response: str, given: Arguments) -> bool:
    """There is no comma."""
    return "," not in response


FUNCTIONS = {
    "validate_choice": Constraint(_choice, ("options",)),
    "validate_end": Constraint(_end, ("end_phrase",)),
    "validate_forbidden_words": Constraint(_forbidden_words, ("forbidden_words",)),
    "validate_frequency_capital_words": Constraint(_capital_words, ("N", "quantifier")),
    "validate_highlighted_sections": Constraint(_highlighted_sections, ("N",)),
    "validate_json_format": Constraint(_json_format),
    "validate_lowercase": Constraint(_lowercase),
    "validate_no_commas": Constraint(_no_commas),
    "validate_paragraphs": Constraint(_paragraphs, ("N", "first_word", "i")),
    "validate_placeholders": Constraint(_placeholders, ("N",)),
    "validate_quotation": Constraint(_quotation),
    "validate_repeat_prompt": Constraint(_repeat_prompt, ("original_prompt",)),
    "validate_response_language": Constraint(_language, ("language",)),
    "validate_sections": Constraint(_sections, ("N", "section_splitter")),
    "validate_title": Constraint(_title),
    "validate_two_responses": Constraint(_two_responses),
    "validate_uppercase": Constraint(_uppercase),
    "validate_word_constraint": Constraint(_word_constraint, ("N", "quantifier")),
    "verify_bullet_points": Constraint(_bullet_points, ("N",)),
    "verify_keyword_frequency": Constraint(_keyword_frequency, ("word", "N")),
    "verify_keywords": Constraint(_keywords, ("keyword_list",)),
    "verify_letter_frequency": Constraint(_letter_frequency, ("letter", "N")),
    "verify_paragraph_count": Constraint(_paragraph_count, ("N",)),
    "verify_postscript": Constraint(_postscript, ("postscript_marker",)),
    "verify_sentence_constraint": Constraint(_sentence_constraint, ("N", "quantifier")),
}
