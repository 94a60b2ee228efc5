"""Signs of reasoning in steps (open-r1)."""

import re
from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier

_SIGN = re.compile(r"Step \d+:|\A\d+\.|\n[-*]|(?:First|Second|Next|Finally),")
_ENOUGH = 3


def verify(completion: str, label: Any) -> Verdict:
    """Counts signs of steps: "Step 1:", "First,", "Second,", "Next,", "Finally,", and lines that begin with - or *.

    A number with a period counts only at the very start of the completion. Label: anything. Value: a third for each
    sign, 1 at most.
    """
    return Verdict(reasoning_steps(completion))


def reasoning_steps(completion: str) -> float:
    """Returns the share of three signs that are found, as `verify` documents it."""
    return min(1.0, len(_SIGN.findall(completion)) / _ENOUGH)


VERIFIER = Verifier(verify, values="0 to 1", best="measure", reads="completion")
