"""An answer in tags that equals the label after normalization."""

from typing import Any

from services.reward.common.text import last_between, words_verdict
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Compares the last <answer>...</answer> with the label.

    Ignores case, ASCII punctuation, articles and white space. Label: an accepted text or number, or a list of these.
    Value: 1 if they are equal, else 0; 0 without both tags.
    """
    wanted = acceptable_texts(label)
    answer = last_between(completion, "<answer>", "</answer>")
    if answer is None:
        return Verdict(0.0, "no <answer>...</answer>", answer="")
    return words_verdict(answer.strip(), wanted)


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
