"""Thoughts, then an answer in tags, as DeepSeek-R1 writes (arXiv:2501.12948)."""

from typing import Any

from services.reward.verdict import Verdict

_THOUGHT, _START, _END = "</think>", "<answer>", "</answer>"


def verify(completion: str, label: Any, *, reward: float = 1.0) -> Verdict:
    """Looks for the end of thoughts that an answer in tags follows at once, but for white space.

    That is </think>, then <answer>, then </answer>; the opening <think> may stand in the prompt and text may
    follow. Label: anything. Value: `reward` if that is found, else 0.
    """
    return Verdict(reward if has_r1_format(completion) else 0.0)


def has_r1_format(completion: str) -> bool:
    """Linear in the text: the last </answer> serves every place where an answer may begin."""
    last_end = completion.rfind(_END)
    place = completion.find(_THOUGHT)
    while 0 <= place < last_end:
        place += len(_THOUGHT)
        after = place
        while completion[after : after + 1].isspace():
            after += 1
        if completion.startswith(_START, after) and after + len(_START) <= last_end:
            return True
        place = completion.find(_THOUGHT, after)
    return False
