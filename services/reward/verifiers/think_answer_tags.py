"""Tags of thoughts and answer, each of which occurs once (open-r1)."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier

_TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")


def verify(completion: str, label: Any) -> Verdict:
    """Counts the tags of `think_answer_format` that occur exactly once, with their line breaks.

    These are <think> before a line break, </think> and <answer> between two line breaks, and </answer> after a line
    break. Label: anything. Value: a quarter for each.
    """
    return Verdict(think_answer_tags(completion))


def think_answer_tags(completion: str) -> float:
    """Returns the share of the tags that occur once, as `verify` documents it."""
    return sum(completion.count(tag) == 1 for tag in _TAGS) / len(_TAGS)


VERIFIER = Verifier(verify, values="0 to 1", reads="completion")
