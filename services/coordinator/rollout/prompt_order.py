"""The order in which prompts are issued: the data's order, without prompts that are learned or unusable."""

from collections.abc import Iterable, Set

from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.store.progress import IssueState
from shoal.data.prompt_set import PromptSet
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rollout import Prompt


class PromptOrder:
    """Assigns each group, in the order of issue, the next prompt of the data's endless order that is not excluded.

    In a resumed run, the groups that were in flight get their earlier prompts from the ledger, even if a prompt has
    been excluded since.
    """

    def __init__(
        self, prompts: PromptSet, issued: IssueState, *, easy_rate: float | None = None, unusable: Iterable[str] = ()
    ) -> None:
        """Continues after the issued prompts. `unusable` has the ids of prompts that must not be issued."""
        self._prompts = prompts
        self._easy_rate = easy_rate
        self._assigned = dict(issued.assigned)
        self._next_position = issued.next_position
        self._excluded = set(issued.excluded)
        self._unusable = frozenset(unusable)

    @property
    def num_excluded(self) -> int:
        """Number of prompts that are no longer issued because the policy has learned them."""
        return len(self._excluded)

    @property
    def are_learned(self) -> bool:
        """Whether the policy has learned all usable prompts."""
        return bool(self._excluded) and self.has_only(frozenset())

    def has(self, order_number: int) -> bool:
        """Returns whether there is a prompt for a group."""
        return order_number in self._assigned or not self.are_learned

    def next(self, order_number: int) -> tuple[int, Prompt]:
        """Returns position and prompt of the next group. Raises `FailedPrecondition` if no prompt is left."""
        if (position := self._assigned.pop(order_number, None)) is not None:
            return position, self._prompts.at(position)
        for position in range(self._next_position, self._next_position + 2 * len(self._prompts)):
            prompt = self._prompts.at(position)
            if prompt.prompt_id not in self._excluded and prompt.prompt_id not in self._unusable:
                self._next_position = position + 1
                return position, prompt
        raise FailedPrecondition(
            f"no prompt is left: of {len(self._prompts)} prompts, {len(self._unusable)} are unusable (a bad label, or "
            "too long with tools), and the others are learned (grpo.easy_rate): correct these prompts, or add prompts",
            reason=ErrorReason.PROMPTS_EXHAUSTED,
        )

    def has_only(self, prompt_ids: Set[str]) -> bool:
        """Returns whether `prompt_ids` has every prompt that is still issued."""
        left_out = self._excluded | self._unusable
        return all(one.prompt_id in prompt_ids or one.prompt_id in left_out for one in self._prompts.prompts)

    def exclude_learned(self, groups: Iterable[JudgedGroup]) -> list[tuple[int, str]]:
        """Excludes prompts that are learned. Returns their groups' order numbers and their ids, for the ledger."""
        learned = [(group.order_number, group.settled.prompt.prompt_id) for group in groups if self.is_learned(group)]
        self._excluded.update(prompt_id for _, prompt_id in learned)
        return learned

    def is_learned(self, group: JudgedGroup) -> bool:
        """Returns whether the share of correct completions in a group is at least `grpo.easy_rate`."""
        share = group.correct_share
        return self._easy_rate is not None and share is not None and share >= self._easy_rate
