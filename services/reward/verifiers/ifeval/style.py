"""Constraints on case, punctuation and language: `change_case:*`, `punctuation:*`, `language:*`."""

from collections.abc import Callable

from services.reward.common.language import is_language
from services.reward.verifiers.ifeval.arguments import Arguments


def english_capitals(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is all uppercase, and English.

    Text in no detectable language passes as English; with `strict_wording`, it does not.
    """
    return response.isupper() and is_language(response, "en", undetectable=not arguments.strict_wording)


def english_lowercase(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is all lowercase, and English.

    Text in no detectable language passes as English; with `strict_wording`, it does not.
    """
    return response.islower() and is_language(response, "en", undetectable=not arguments.strict_wording)


def response_language(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is in `language`, a code such as "de".

    Text in no detectable language passes; with `strict_wording`, it does not.
    """
    return is_language(response, arguments.language("language"), undetectable=not arguments.strict_wording)


def lacks(mark: str) -> Callable[[str, Arguments], bool]:
    """Returns the constraint that a response does not contain a mark, not even in a number."""
    return lambda response, arguments: mark not in response
