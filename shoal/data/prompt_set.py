"""Prompt sets: prompts in an endless order, whose only state is a position."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.data.draw import permutation
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt


@dataclass
class PromptSet:
    """The prompts of a run.

    Example: with 3 prompts, positions 0 to 2 are the first pass, 3 to 5 the second in an order of its own.
    """

    prompts: Sequence[Prompt]
    questions: Sequence[str]
    """The question of each prompt, without system messages and template, with the task of its environment: equal for
    prompts that ask the same."""
    num_dropped_too_long: int = 0
    """Prompts left out because they have more than `data.max_prompt_tokens` tokens."""
    seed: int = 0
    shuffle: bool = True
    _order: tuple[int, npt.NDArray[np.intp]] | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.prompts)

    def at(self, position: int) -> Prompt:
        """Returns the prompt at a position, from 0, of the endless order; it depends only on seed and position."""
        if position < 0:
            raise ValueError(f"position must be at least 0 (given: {position})")
        number_of_pass, index = divmod(position, len(self.prompts))
        if not self.shuffle:
            return self.prompts[index]
        if self._order is None or self._order[0] != number_of_pass:
            # Keep only the latest order: positions are visited nearly in sequence.
            self._order = (number_of_pass, permutation(f"pass:{self.seed}:{number_of_pass}", len(self.prompts)))
        return self.prompts[int(self._order[1][index])]


def held_out_prompts(candidates: PromptSet, trained_on: Iterable[str], num_prompts: int) -> list[Prompt]:
    """Returns the first `num_prompts` candidates, in order, whose question is not in `trained_on`, each question once.
    Returns fewer if there are not enough.

    Rows that name an environment are questions of their own, also with equal words and tasks: what it draws differs.

    Raises `InvalidArgument` when none is left.
    """
    known, seen = frozenset(trained_on), set[tuple[str, str]]()
    chosen: list[Prompt] = []
    for prompt, question in zip(candidates.prompts, candidates.questions, strict=True):
        key = (question, prompt.prompt_id if prompt.environment is not None else "")
        if question not in known and key not in seen and len(chosen) < num_prompts:
            seen.add(key)
            chosen.append(prompt)
    if not chosen:
        raise InvalidArgument(
            f"evaluation.sources: all {len(candidates)} questions are among the training prompts; "
            "give another task_seed, split or file, or set evaluation.held_out to false to ask them anyway"
        )
    return chosen
