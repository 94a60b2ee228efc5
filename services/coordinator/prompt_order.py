"""Which prompt is issued next: the data's order, less prompts that the policy has learned or nobody can score."""

from collections.abc import Iterable, Mapping

from services.coordinator.judgement import correct_share
from services.coordinator.sampling import SettledGroup
from shoal.data.prompt_set import PromptSet
from shoal.errors import FailedPrecondition
from shoal.rollout import Prompt


class PromptOrder:
    """Gives each group, in the order of issue, the next prompt of the endless order that is not excluded.

    What was given is in the ledger. A run that goes on gives the groups that were on their way the same prompts
    again, whatever has been excluded since.
    """

    def __init__(
        self,
        prompts: PromptSet,
        *,
        easy_rate: float | None = None,
        given: Mapping[int, int],
        next_position: int,
        excluded: Iterable[str],
        left_out: Iterable[str] = (),
    ) -> None:
        """`given`: positions in the endless order by order number, for the groups to be issued again. `excluded`:
        prompts that the policy has learned; `left_out`: those that cannot be scored."""
        self._prompts = prompts
        self._easy_rate = easy_rate
        self._given = dict(given)
        self._next_position = next_position
        self._excluded = set(excluded)
        self._left_out = frozenset(left_out)

    @property
    def num_excluded(self) -> int:
        """Prompts that are not asked any more because the policy has learned them."""
        return len(self._excluded)

    def next(self, order_number: int) -> tuple[int, Prompt]:
        """Position and prompt of the next group to be issued.

        Raises `FailedPrecondition` when every prompt is excluded.
        """
        if (position := self._given.pop(order_number, None)) is not None:
            return position, self._prompts.at(position)
        for position in range(self._next_position, self._next_position + 2 * len(self._prompts)):
            prompt = self._prompts.at(position)
            if prompt.prompt_id not in self._excluded and prompt.prompt_id not in self._left_out:
                self._next_position = position + 1
                return position, prompt
        raise FailedPrecondition(
            f"all {len(self._prompts)} prompts are learned to grpo.easy_rate or left out for their labels "
            f"({len(self._left_out)}): raise easy_rate, or give more prompts",
            reason="PROMPTS_EXHAUSTED",
        )

    def exclude_learned(self, groups: Iterable[SettledGroup]) -> list[tuple[int, str]]:
        """Leaves out, from here on, the prompts of groups of which at least `grpo.easy_rate` is correct.

        Returns their order numbers and ids, for the ledger.
        """
        if self._easy_rate is None:
            return []
        learned = []
        for group in groups:
            share = correct_share(group)
            if share is not None and share >= self._easy_rate:
                learned.append((group.order_number, group.prompt.prompt_id))
        self._excluded.update(prompt_id for _, prompt_id in learned)
        return learned
