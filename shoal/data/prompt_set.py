"""Prompt sets: prompts in an endless order. The only state is a position in the order."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.data.draw import permutation
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt


@dataclass
class PromptSet:
    """The prompts of a run.

    Example: with 3 prompts, positions 0 to 2 are the first pass, and 3 to 5 are the second pass in another order.
    """

    prompts: Sequence[Prompt]
    questions: Sequence[str]
    """The question of each prompt, with the task of its environment, but without system messages and template. Prompts
    with the same content have equal questions."""
    num_dropped_too_long: int = 0
    """Prompts with more than `data.max_prompt_tokens` tokens."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file, data set and task from which the prompts come, by its name."""
    left_out: frozenset[str] = frozenset()
    """Fields about messages, such as `timestamp`, that are in the data but in no prompt."""
    seed: int = 0
    shuffle: bool = True
    _order: tuple[int, npt.NDArray[np.intp]] | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.prompts)

    def at(self, position: int) -> Prompt:
        """Returns the prompt at a position (from 0) of the endless order, which depends only on the seed."""
        if position < 0:
            raise ValueError(f"position must be at least 0 (given: {position})")
        number_of_pass, index = divmod(position, len(self.prompts))
        if not self.shuffle:
            return self.prompts[index]
        if self._order is None or self._order[0] != number_of_pass:
            # Keep only the latest order: positions are visited nearly in sequence.
            self._order = (number_of_pass, permutation(f"pass:{self.seed}:{number_of_pass}", len(self.prompts)))
        return self.prompts[int(self._order[1][index])]


_WHY_LEFT_OUT = {
    "trained_on": "whose question is among the training prompts",
    "repeated": "that another row asks",
    "too_long": "with more than data.max_prompt_tokens tokens",
    "malformed_label": "with a label that their verifier cannot use",
}


@dataclass(frozen=True)
class HeldOut:
    """The held-out questions of a run, and how many questions were omitted."""

    prompts: tuple[Prompt, ...] = ()
    num_wanted: int = 0
    """The number of questions that `evaluation.num_prompts` asks for."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """The number of questions omitted for each reason, before the last question that is asked."""

    def without(self, reason: str, prompt_ids: Collection[str]) -> "HeldOut":
        """Omits the questions with the given ids, for a reason."""
        kept = tuple(prompt for prompt in self.prompts if prompt.prompt_id not in prompt_ids)
        num_left_out = self.left_out.get(reason, 0) + len(self.prompts) - len(kept)
        return HeldOut(kept, self.num_wanted, {**self.left_out, **({reason: num_left_out} if num_left_out else {})})

    def __str__(self) -> str:
        listed = ", ".join(f"{count} {_WHY_LEFT_OUT[reason]}" for reason, count in self.left_out.items())
        total = sum(self.left_out.values())
        why = f", and {total} are left out: {listed}" if total else ""
        return (
            f"{len(self.prompts)} held-out questions are asked instead of {self.num_wanted} "
            f"(evaluation.num_prompts){why}"
        )

    @property
    def lacks_questions(self) -> bool:
        """Whether fewer questions are asked than the configuration wants, because some questions are omitted."""
        return len(self.prompts) < self.num_wanted and bool(self.left_out)


def held_out_prompts(candidates: PromptSet, trained_on: Iterable[str], num_prompts: int) -> HeldOut:
    """Returns the first `num_prompts` different questions, in order, that are not in `trained_on`, or fewer if there
    are not enough.

    Each row with an environment is a different question, even if words and tasks are equal, because the draws of the
    environment differ. Raises `InvalidArgument` when no question is left.
    """
    known, seen = frozenset(trained_on), set[tuple[str, str]]()
    chosen: list[Prompt] = []
    left_out = Counter(too_long=candidates.num_dropped_too_long)
    for prompt, question in zip(candidates.prompts, candidates.questions, strict=True):
        if len(chosen) == num_prompts:
            break
        key = (question, prompt.prompt_id if prompt.environment is not None else "")
        if question in known:
            left_out["trained_on"] += 1
        elif key in seen:
            left_out["repeated"] += 1
        else:
            seen.add(key)
            chosen.append(prompt)
    if not chosen:
        raise InvalidArgument(
            f"evaluation.sources: all {len(candidates)} questions are among the training prompts; give another "
            "task_seed, split or file, or set evaluation.held_out to false to ask these questions anyway"
        )
    return HeldOut(
        tuple(chosen), num_prompts, {reason: left_out[reason] for reason in _WHY_LEFT_OUT if left_out[reason]}
    )
