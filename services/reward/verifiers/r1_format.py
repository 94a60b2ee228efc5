"""Thoughts followed by an answer in tags, the format of DeepSeek-R1 (arXiv:2501.12948)."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section

_THOUGHT, _START, _END = "</think>", "<answer>", "</answer>"


class FormatOptions(Section):
    reward: float = 1.0
    """Value of a completion in the right format."""

    @property
    def reaches_1(self) -> bool:
        """Whether the best value is at least 1."""
        return self.reward >= 1


def verify(completion: str, label: Any, options: FormatOptions = FormatOptions()) -> Verdict:
    """Looks for the end of thoughts and, with only white space in between, an answer in tags.

    That is </think>, then <answer>, then </answer>; the prompt may hold the opening <think>, and text may follow.
    Label: anything. Value: `reward` if this is found, else 0.
    """
    return Verdict(options.reward if has_r1_format(completion) else 0.0)


def has_r1_format(completion: str) -> bool:
    """Returns whether the format is found, in time linear in the text: the last </answer> closes every candidate."""
    last_end = completion.rfind(_END)
    position = completion.find(_THOUGHT)
    while 0 <= position < last_end:
        position += len(_THOUGHT)
        after = position
        while completion[after : after + 1].isspace():
            after += 1
        if completion.startswith(_START, after) and after + len(_START) <= last_end:
            return True
        position = completion.find(_THOUGHT, after)
    return False


VERIFIER = Verifier(verify, values="`reward` or 0", options=FormatOptions, reads="completion")
