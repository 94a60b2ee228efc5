"""The completions of a step or an evaluation that events, terminals and trackers show."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from shoal.quantities import counted
from shoal.rollout import Completion, Prompt
from shoal.scores import Score, ScoreOutcome
from shoal.visible_text import visible

MAX_CHARS = 2000
"""Maximum number of characters shown of a text. The middle of a longer text is left out."""

Judged = tuple[Prompt, Sequence[Completion], Sequence[Score]]
"""A prompt with its completions and their scores."""


@dataclass(frozen=True)
class ShownCompletion:
    """A completion with its outcome. All characters of its texts are visible, and the texts are cut to `MAX_CHARS`."""

    question: str
    label: str
    completion: str
    num_tokens: int
    reward: float | None
    """The reward; None if scoring was not possible."""
    verdicts: str
    """Each verifier with its value, or else with the outcome: "gsm8k 1, r1_format failed"."""

    def row(self) -> dict[str, Any]:
        """Returns the fields by name, in the order of a table's columns."""
        return asdict(self)

    def __str__(self) -> str:
        """Describes the completion in several lines, for people."""
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        return (
            f"--- question (label: {self.label})\n{self.question}\n"
            f"--- completion ({counted(self.num_tokens, 'token')}, {reward}; {self.verdicts or 'no verdict'})\n"
            f"{self.completion}"
        )


def shown(judged: Iterable[Judged], count: int) -> list[ShownCompletion]:
    """Chooses `count` completions: the first of each prompt, then the second of each, and so on."""
    groups = [
        [(prompt, *pair) for pair in zip(completions, scores, strict=False)] for prompt, completions, scores in judged
    ]
    longest = max(map(len, groups), default=0)
    by_turns = (group[index] for index in range(longest) for group in groups if index < len(group))
    return [_shown(*chosen) for chosen in islice(by_turns, count)]


def _shown(prompt: Prompt, completion: Completion, score: Score) -> ShownCompletion:
    parts = score.verifier_scores
    return ShownCompletion(
        question=_cut(prompt.question),
        label=_cut(", ".join(str(truth.label) for truth in prompt.ground_truths)),
        completion=_cut(completion.text),
        num_tokens=completion.num_tokens,
        reward=score.reward if score.outcome is ScoreOutcome.SCORED else None,
        verdicts=", ".join(
            f"{part.verifier} {f'{part.value:g}' if part.outcome is ScoreOutcome.SCORED else part.outcome.value}"
            for part in parts
        ),
    )


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return visible(text)
    half = MAX_CHARS // 2
    return f"{visible(text[:half])} [… {len(text) - 2 * half:,} characters …] {visible(text[-half:])}"
