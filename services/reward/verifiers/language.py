"""The language that an answer is written in."""

from typing import Any

from services.reward import language
from services.reward.text import without_thinking
from services.reward.verdict import Unscorable, Verdict, acceptable_texts

_CHINESE = {"zh": ("zh-cn", "zh-tw")}
"""langdetect tells scripts apart, most data do not."""


def load() -> None:
    """Reads the models of languages; takes a second."""
    language.load()


def verify(completion: str, label: Any) -> Verdict:
    """Tells the language of all that follows the last </think>, without answer tags.

    Label: a language's code, "de", "pt" or "zh-tw" ("zh" is Chinese in either script), in any case; or a list of those
    of which any will do. Value: 1 if langdetect's likeliest language is one of them, else 0; 0 where nothing tells a
    language, as in an empty answer or a mere number.
    """
    wanted = {code for text in acceptable_texts(label) for code in _codes(text)}
    found = language.language_of(without_thinking(completion))
    return Verdict(float(found in wanted), found or "no language can be told")


def _codes(text: str) -> tuple[str, ...]:
    code = text.strip().lower().replace("_", "-")
    codes = _CHINESE.get(code, (code,))
    known = language.language_codes()
    if not known.issuperset(codes):
        raise Unscorable(
            f"the label must be a language's code (found: {text!r:.80}); known: {', '.join(sorted(known))}"
        )
    return codes
