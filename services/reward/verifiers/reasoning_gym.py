"""reasoning-gym's own scorers (github.com/open-thought/reasoning-gym)."""

import importlib
from functools import lru_cache
from typing import Any

from services.reward.deadline import deadline
from services.reward.text import last_between
from services.reward.verdict import Unscorable, Verdict
from shoal.reasoning_entry import entry_from_text


def load() -> None:
    """Imports what judging needs; takes some seconds."""
    importlib.import_module("reasoning_gym.factory")


def verify(completion: str, label: Any, *, timeout_s: float = 5.0) -> Verdict:
    """Lets the task that made the question score the answer.

    The answer is the last <answer>...</answer>; without one, what follows the last </think>, or everything.
    Label: {"task": name, "options": JSON text, "entry": JSON text}, as a source with `task` makes it. Value: 0 to
    1; many tasks give 0.01 to 0.05 for a wrong answer in the right form. Unscorable past `timeout_s`.
    """
    task, options, entry = _read(label)
    tagged = last_between(completion, "<answer>", "</answer>")
    answer = (completion.rpartition("</think>")[2] if tagged is None else tagged).strip()
    with deadline(timeout_s, f"the scorer of {task}"):
        return Verdict(float(_scorer(task, options).score_answer(answer, entry)), answer)


def _read(label: Any) -> tuple[str, str, Any]:
    try:
        task, options, entry = (label[key] for key in ("task", "options", "entry"))
        return str(task), str(options), entry_from_text(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise Unscorable(f"the label is not one of a reasoning-gym task: {error}") from None


@lru_cache(maxsize=64)
def _scorer(task: str, options: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise Unscorable(f"reasoning-gym has no task {task!r}")
    return create_dataset(task, **entry_from_text(options))
