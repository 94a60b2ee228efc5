"""Whether a completion thinks first and answers then, as DeepSeek-R1 is taught to (arXiv:2501.12948)."""

import re
from typing import Any

from services.reward.verdict import Verdict

_FORM = re.compile(r".*?</think>\s*<answer>.*?</answer>", re.DOTALL)


def verify(completion: str, label: Any) -> Verdict:
    """Looks for `</think>` and, after white space alone, `<answer>...</answer>`.

    Label: not looked at. Value: 1 if they are there, else 0. The opening `<think>` may be part of the prompt, and text
    may follow the answer. The mean of this verifier's values is the metric `val/format_scores`.
    """
    fits = _FORM.match(completion) is not None
    return Verdict(float(fits), "" if fits else "no </think> <answer>...</answer>")
