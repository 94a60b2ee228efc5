"""The number of a step's completions without a reward, and the first reason."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from services.coordinator.rollout.groups import JudgedGroup
from shoal.scores import Score, ScoreOutcome
from shoal.visible_text import visible

_MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Unscored:
    """The completions without a reward among all completions of a step."""

    num_failed: int
    num_unscorable: int
    num_completions: int
    first_error: str
    """The verifier and its error for the first failed completion, or else for the first unscorable completion."""

    def attributes(self) -> dict[str, Any]:
        """Returns the counts as the attribute of an event."""
        return asdict(self)

    @classmethod
    def from_attributes(cls, values: Mapping[str, Any]) -> "Unscored":
        """Reads what `attributes` returned."""
        counts = {name: int(values[name]) for name in ("num_failed", "num_unscorable", "num_completions")}
        return cls(first_error=str(values["first_error"]), **counts)

    def __str__(self) -> str:
        """Describes the completions without a reward.

        Example: "3 of 64 completions have no reward: scoring failed on 3; first reason: mine: KeyError: 'x'".
        """
        parts = [
            text
            for count, text in (
                (self.num_failed, f"scoring failed on {self.num_failed}"),
                (self.num_unscorable, f"{self.num_unscorable} cannot be judged"),
            )
            if count
        ]
        num_unscored = self.num_failed + self.num_unscorable
        return (
            f"{num_unscored} of {self.num_completions} completions have no reward: {', '.join(parts)}; "
            f"first reason: {self.first_error}"
        )


def unscored_of(groups: Iterable[JudgedGroup]) -> Unscored | None:
    """Counts the completions of groups that have no reward; None if all have a reward."""
    scores = [score for group in groups for score in group.settled.scores]
    failed = [score for score in scores if score.outcome is ScoreOutcome.FAILED]
    unscorable = [score for score in scores if score.outcome is ScoreOutcome.UNSCORABLE]
    if not failed and not unscorable:
        return None
    return Unscored(len(failed), len(unscorable), len(scores), _reason(next(iter(failed + unscorable))))


def _reason(score: Score) -> str:
    part = next((part for part in score.verifier_scores if part.outcome is score.outcome), None)
    if part is None:
        return "no verifier answered in time"
    detail = visible(" ".join(part.detail.split())[:_MAX_ERROR_CHARS])
    return f"{part.verifier}: {detail or 'the verifier gave no reason'}"
