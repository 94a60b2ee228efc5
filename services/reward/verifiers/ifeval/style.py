"""Constraints on case, punctuation and language: `change_case:*`, `punctuation:*`, `language:*`."""

from services.reward.language import is_language
from services.reward.verifiers.ifeval.arguments import Arguments


def english_capitals(response: str, given: Arguments) -> bool:
    """All in capitals, and English. Where no language can be told, yes; strictly worded no."""
    return response.isupper() and is_language(response, "en", undetectable=not given.strict_wording)


def english_lowercase(response: str, given: Arguments) -> bool:
    """All in small letters, and English. Where no language can be told, yes; strictly worded no."""
    return response.islower() and is_language(response, "en", undetectable=not given.strict_wording)


def response_language(response: str, given: Arguments) -> bool:
    """It is in `language`, a code such as "de". Where no language can be told, yes; strictly worded no."""
    return is_language(response, given.language("language"), undetectable=not given.strict_wording)


def no_commas(response: str, given: Arguments) -> bool:
    """There is no comma."""
    return "," not in response


def no_dots(response: str, given: Arguments) -> bool:
    """There is no full stop, also not in a number."""
    return "." not in response


def no_exclamation_marks(response: str, given: Arguments) -> bool:
    """There is no exclamation mark."""
    return "!" not in response
