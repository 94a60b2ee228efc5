"""Rows from tasks that generate questions: Shoal's sums, and reasoning-gym."""

import difflib
from collections.abc import Iterator
from typing import Any

from shoal.config.data import SourceConfig
from shoal.data.draw import draw_distinct
from shoal.data.rows import Row, RowSource
from shoal.errors import InvalidArgument
from shoal.reasoning_entry import entry_to_text

ARITHMETIC = "arithmetic"


def make_task(source: SourceConfig) -> RowSource:
    """Generates `task_size` questions of a task from `task_seed`, each with its verifier and label.

    The settings of the source name the columns. Raises `InvalidArgument` for an unknown task or option, or a size that
    the task cannot reach.
    """
    assert source.task is not None
    questions = _arithmetic(source) if source.task == ARITHMETIC else _reasoning_gym(source)
    name = f"{source.task}@{source.task_seed}"
    return RowSource(
        name,
        [
            Row(
                number,
                f"{name} question {number + 1}",
                {
                    source.messages_column: question,
                    source.ground_truth_column: label,
                    source.verifier_column: verifier,
                },
            )
            for number, (question, label, verifier) in enumerate(questions)
        ],
    )


def _arithmetic(source: SourceConfig) -> Iterator[tuple[str, Any, str]]:
    """Generates different sums of two numbers from 0 to `max_operand` (default 49)."""
    options = dict(source.task_options)
    largest = options.pop("max_operand", 49)
    if options:
        raise InvalidArgument(f"task arithmetic has no option {sorted(options)[0]!r}; known: max_operand")
    if isinstance(largest, float) and largest.is_integer():
        largest = int(largest)  # after traveling as a Struct
    if not isinstance(largest, int) or isinstance(largest, bool) or not 0 <= largest < 2**31:
        raise InvalidArgument(
            f"task arithmetic: max_operand must be a whole number from 0 to 2^31-1 (given: {largest})"
        )
    base = largest + 1
    if source.task_size > base * base:
        raise InvalidArgument(
            f"task arithmetic: max_operand {largest} gives only {base * base} different questions; "
            f"task_size is {source.task_size}"
        )
    for pair in draw_distinct(f"arithmetic:{source.task_seed}", base * base, source.task_size):
        first, second = divmod(pair, base)
        # The last number of the answer counts, so "3 + 4 = 7" is as good as "7".
        yield f"What is {first} + {second}? Reply with only the number.", str(first + second), "gsm8k"


def _reasoning_gym(source: SourceConfig) -> Iterator[tuple[str, Any, str]]:
    task = source.task
    assert task is not None
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise InvalidArgument(f"task {task}: reasoning-gym is not installed: pip install 'shoal[tasks]'") from None
    if task not in DATASETS:
        near = difflib.get_close_matches(task, [ARITHMETIC, *DATASETS], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see reasoning-gym's gallery for the names"
        raise InvalidArgument(f"there is no task {task!r}; {hint}")
    options = {key: _whole(value) for key, value in source.task_options.items()}
    try:
        questions = create_dataset(task, seed=source.task_seed, size=source.task_size, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise InvalidArgument(f"task {task} refuses its options {options}: {error}") from None
    for entry in questions:
        label = {"task": task, "options": entry_to_text(options), "entry": entry_to_text(entry)}
        yield entry["question"], label, "reasoning_gym"


def _whole(value: Any) -> Any:
    """Converts whole numbers back to int, after traveling as a Struct, whose numbers are doubles."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value
