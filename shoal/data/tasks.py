"""Rows from tasks that generate questions: Shoal's own tasks, and the tasks of the package `reasoning-gym`."""

import math
import random
from collections.abc import Iterator
from typing import Any

from shoal.config.load import whole_numbers
from shoal.config.tables.data import SourceConfig
from shoal.data.draw import draw_distinct
from shoal.data.rows import Row, RowSource, digest_of_rows
from shoal.errors import InvalidArgument
from shoal.reasoning_entry import entry_to_text
from shoal.similar_names import similar_names

ARITHMETIC = "arithmetic"
MULTIPLICATION = "multiplication"
"""Products for the environment `calculator`, with an example of a call of the environment's tool."""
GUESSING = "guessing"
"""Numbers from 1 to 5 for three guesses in the environment `guess_number`, with two games as examples."""
_EXAMPLE = (
    {"role": "system", "content": "Use the tool."},
    {"role": "user", "content": "What is 12 times 34?"},
    {"role": "assistant", "content": "<calc>12*34</calc>"},
    {"role": "user", "content": "Result: 408"},
    {"role": "assistant", "content": "408"},
)
_HIGHEST = 5
_ASKED = {"role": "user", "content": f"I think of a whole number from 1 to {_HIGHEST}. Guess it. You have 3 guesses."}
_EXAMPLE_OF_GUESSING = (
    {"role": "system", "content": "Guess the number."},
    _ASKED,
    {"role": "assistant", "content": "3"},
    {"role": "tool", "content": "It is lower than 3."},
    {"role": "assistant", "content": "1"},
    {"role": "tool", "content": "Yes, it is 1."},
    _ASKED,
    {"role": "assistant", "content": "3"},
    {"role": "tool", "content": "It is higher than 3."},
    {"role": "assistant", "content": "4"},
    {"role": "tool", "content": "Yes, it is 4."},
)


def make_task(source: SourceConfig) -> RowSource:
    """Generates `task_size` questions of a task from `task_seed`, in the columns that the source names. Raises
    `InvalidArgument` for an unknown task or option, or a size for which the task has too few questions."""
    assert source.task is not None
    name = f"{source.task}@{source.task_seed}"
    values = _OWN.get(source.task, _reasoning_gym)(source)
    rows = [Row(number, f"{name} question {number + 1}", value) for number, value in enumerate(values)]
    return RowSource(name, rows, {name: digest_of_rows(rows)})


def _labeled(source: SourceConfig, question: str, label: Any, verifier: str) -> dict[str, Any]:
    values = {source.messages_column: question, source.ground_truth_column: label}
    if source.environment_task_column != source.ground_truth_column:  # Otherwise the environment reads the label.
        values[source.verifier_column] = verifier
    return values


def _arithmetic(source: SourceConfig) -> Iterator[dict[str, Any]]:
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
            f"task arithmetic: max_operand {largest} gives only {base * base} different questions, but task_size is "
            f"{source.task_size}: lower task_size, or raise max_operand"
        )
    for pair in draw_distinct(f"arithmetic:{source.task_seed}", base * base, source.task_size):
        first, second = divmod(pair, base)
        # The last number of the answer counts, so "3 + 4 = 7" is as good as "7".
        yield _labeled(source, f"What is {first} + {second}? Reply with only the number.", str(first + second), "gsm8k")


def _multiplication(source: SourceConfig) -> Iterator[dict[str, Any]]:
    """Generates different products of two numbers from 10 to 99. The environment's task is {"a", "b"}."""
    if source.task_options:
        raise InvalidArgument(f"task multiplication has no options (given: {sorted(source.task_options)[0]!r})")
    if source.task_size > 90 * 90:
        raise InvalidArgument(f"task multiplication has 8100 different questions: lower task_size ({source.task_size})")
    for pair in draw_distinct(f"multiplication:{source.task_seed}", 90 * 90, source.task_size):
        a, b = 10 + pair // 90, 10 + pair % 90
        values: dict[str, Any] = {
            source.messages_column: [*_EXAMPLE, {"role": "user", "content": f"What is {a} times {b}?"}],
            source.environment_task_column: {"a": a, "b": b},
            source.ground_truth_column: str(a * b),
        }
        if not source.names_environments:  # An environment gives the reward itself.
            values[source.verifier_column] = "gsm8k"
        yield values


def _guessing(source: SourceConfig) -> Iterator[dict[str, Any]]:
    """Generates games of guessing a number from 1 to 5. The environment's task is {"number"}."""
    if source.task_options:
        raise InvalidArgument(f"task guessing has no options (given: {sorted(source.task_options)[0]!r})")
    numbers = random.Random(f"guessing:{source.task_seed}")
    for _ in range(source.task_size):
        hidden = numbers.randint(1, _HIGHEST)
        yield {source.messages_column: [*_EXAMPLE_OF_GUESSING], source.environment_task_column: {"number": hidden}}


def _reasoning_gym(source: SourceConfig) -> Iterator[dict[str, Any]]:
    task = source.task
    assert task is not None
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise InvalidArgument(f"task {task}: reasoning-gym is not installed: pip install 'shoal[tasks]'") from None
    if task not in DATASETS:
        near = similar_names(task, [*_OWN, *DATASETS])
        hint = f"did you mean {' or '.join(near)}?" if near else "the gallery of reasoning-gym lists the names"
        raise InvalidArgument(f"there is no task {task!r}; {hint}")
    options = {key: whole_numbers(value, below=math.inf) for key, value in source.task_options.items()}
    try:
        questions = create_dataset(task, seed=source.task_seed, size=source.task_size, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise InvalidArgument(f"task {task} refuses the options {options}: {error}") from None
    for entry in questions:
        label = {"task": task, "options": entry_to_text(options), "entry": entry_to_text(entry)}
        yield _labeled(source, entry["question"], label, "reasoning_gym")


_OWN = {ARITHMETIC: _arithmetic, MULTIPLICATION: _multiplication, GUESSING: _guessing}
"""Shoal's own tasks."""
