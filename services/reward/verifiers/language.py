"""The language of an answer."""

from typing import Any

from services.reward.common import language
from services.reward.common.text import without_tags
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier

_CHINESE = {"zh": ("zh-cn", "zh-tw")}
"""langdetect distinguishes the scripts; most data do not."""


def verify(completion: str, label: Any) -> Verdict:
    """Detects the language of the answer, without answer tags.

    Label: a language code in any case, "de", "pt" or "zh-tw" ("zh" is Chinese in either script), or a list of accepted
    codes. Value: 1 if the language that langdetect finds likeliest is one of them, else 0; 0 where no language can be
    detected, as in an empty answer or a bare number.
    """
    wanted = {code for text in acceptable_texts(label) for code in _codes(text)}
    found = language.language_of(without_tags(completion))
    return Verdict(float(found in wanted), found or "no language detected")


def _codes(text: str) -> tuple[str, ...]:
    code = text.strip().lower().replace("_", "-")
    codes = _CHINESE.get(code, (code,))
    known = language.language_codes()
    if not known.issuperset(codes):
        raise Unscorable(f"the label must be a language code (found: {text!r:.80}); known: {', '.join(sorted(known))}")
    return codes


VERIFIER = Verifier(verify, values="1 or 0", load=language.load, package="langdetect")
