"""An answer to a reasoning-gym task, by the task's own scorer (github.com/open-thought/reasoning-gym)."""

import importlib
from functools import lru_cache
from typing import Any

from pydantic import Field

from services.reward.common.deadline import within
from services.reward.common.text import tagged_or_all
from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section
from shoal.reasoning_entry import entry_from_text


def load() -> None:
    """Imports reasoning-gym; takes some seconds."""
    importlib.import_module("reasoning_gym.factory")


class ReasoningGymOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for a task's scorer on one answer. After this time the completion is UNSCORABLE."""


def verify(completion: str, label: Any, options: ReasoningGymOptions = ReasoningGymOptions()) -> Verdict:
    """Scores the answer with the task that generated the question.

    The answer is the last <answer>...</answer>, or the whole text without one. Label: {"task": name, "options": JSON
    text, "entry": JSON text}, as a source with `task` makes it. Value: 0 to 1; many tasks give 0.01 to 0.05 for a wrong
    answer in the right form. Unscorable past `timeout_s`.
    """
    task, task_options, entry = _read(label)
    answer = tagged_or_all(completion)
    scorer = f"the scorer of {task}"
    value = within(options.timeout_s, scorer, lambda: _scorer(task, task_options).score_answer(answer, entry))
    return Verdict(float(value), answer)


def _read(label: Any) -> tuple[str, str, Any]:
    try:
        task, options, entry = (label[key] for key in ("task", "options", "entry"))
        entry_from_text(str(options))
        return str(task), str(options), entry_from_text(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise Unscorable(f"the label does not belong to a reasoning-gym task: {error}") from None


@lru_cache(maxsize=64)
def _scorer(task: str, options: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise Unscorable(f"reasoning-gym has no task {task!r}")
    return create_dataset(task, **entry_from_text(options))


VERIFIER = Verifier(
    verify, values="0 to 1", options=ReasoningGymOptions, load=load, package="reasoning_gym", extra="tasks"
)
