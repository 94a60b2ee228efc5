"""Rubrics: several weighted criteria, each a separate question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.common.verdict import Unscorable
from services.reward.judge.templates import Template

CRITERION = Template(
    "Grade whether the answer meets one criterion, and nothing else about it. 0: it does not; 1: in part; 2: wholly."
    "\n\nCriterion:\n{rubric}\n\nQuestion:\n{question}\n\nAnswer to grade:\n{answer}\n",
    highest=2.0,
)

DESCRIPTION = """Weighted criteria, each graded by a language model (`reward.judge`).

Label: an object with `rubrics`, a list of objects with `description` and `weight` (1 by default; below 0 for what an
answer should not do), and optionally `query`, the question. Value: the sum of grade times weight, divided by the sum of
the absolute weights; -1 to 1, and 0 to 1 if no weight is below 0. Scored only if every criterion was."""


@dataclass(frozen=True)
class Criterion:
    """A criterion of a rubric."""

    description: str
    weight: float


def read_rubric(label: Any) -> tuple[str, list[Criterion]]:
    """Reads the label's question, empty if it has none, and its criteria. Raises `Unscorable`."""
    if not isinstance(label, Mapping) or not isinstance(label.get("rubrics"), list) or not label["rubrics"]:
        raise Unscorable("the label must be an object with rubrics, a list of at least one criterion")
    query = label.get("query") or ""
    if not isinstance(query, str):
        raise Unscorable(f"the label's query must be a text (found: {query!r:.80})")
    criteria = [_criterion(index, item) for index, item in enumerate(label["rubrics"])]
    if not any(criterion.weight for criterion in criteria):
        raise Unscorable("every weight of the label's rubrics is 0")
    return query, criteria


def _criterion(index: int, item: Any) -> Criterion:
    description = item.get("description") if isinstance(item, Mapping) else None
    if not isinstance(description, str) or not description.strip():
        raise Unscorable(f"rubrics[{index}] of the label has no description (found: {item!r:.80})")
    weight = item.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise Unscorable(f"rubrics[{index}].weight of the label must be a number (found: {weight!r:.80})")
    return Criterion(description, float(weight))


def weighted(criteria: Sequence[Criterion], values: Sequence[float]) -> float:
    """Combines the values of single criteria to the value of the rubric."""
    total = math.fsum(abs(criterion.weight) for criterion in criteria)
    return math.fsum(c.weight * value for c, value in zip(criteria, values, strict=True)) / total
