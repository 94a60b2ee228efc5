"""Groups in a row without a signal: what their completions have in common, and what to look at."""

from collections import Counter
from collections.abc import Iterable

from services.coordinator.rollout.groups import DropReason, JudgedGroup
from shoal.rollout import FinishReason

_WITHOUT_SIGNAL = (DropReason.NO_SIGNAL, DropReason.TOO_HARD, DropReason.TOO_EASY)
_ALL_WRONG = (
    "all wrong: if right answers are among them, the label, the verifier or the form of the answer is at fault (say "
    "in the prompt what the verifier reads); else take easier questions or a larger grpo.group_size"
)
_ALL_RIGHT = "all right: take harder questions"
_ALIKE = "neither all right nor all wrong: a finer reward or a larger grpo.group_size tells them apart"


class SilentGroups:
    """Counts groups that have rewards and nothing to learn from."""

    def __init__(self) -> None:
        self._by_kind = Counter[str]()
        self._num_completions = self._num_cut_off = 0

    @property
    def num_groups(self) -> int:
        """Groups so far."""
        return self._by_kind.total()

    @property
    def are_all_right(self) -> bool:
        """Whether every completion of every group is right."""
        return set(self._by_kind) == {_ALL_RIGHT}

    def add(self, groups: Iterable[JudgedGroup]) -> None:
        """Counts those of some groups that have rewards and no signal."""
        for group in groups:
            if group.drop_reason in _WITHOUT_SIGNAL:
                self._by_kind[_kind_of(group)] += 1
                reasons = [completion.finish_reason for completion in group.settled.completions]
                self._num_completions += len(reasons)
                self._num_cut_off += reasons.count(FinishReason.LENGTH)

    def advice(self, look: str) -> str:
        """Returns what the groups have in common and what would help, the most frequent first.

        `look` is the command that lists the run's groups.
        """
        parts = [f"in {count} the completions are {kind}" for kind, count in self._by_kind.most_common()]
        if 2 * self._num_cut_off > self._num_completions:
            parts.append(
                f"{self._num_cut_off} of {self._num_completions} completions were cut off: raise "
                "sampling.max_completion_tokens"
            )
        return "; ".join([*parts, f"`{look} --dropped --last 5` shows completions and rewards"])


def _kind_of(group: JudgedGroup) -> str:
    if group.correct_share == 0:
        return _ALL_WRONG
    return _ALL_RIGHT if group.correct_share == 1 else _ALIKE
