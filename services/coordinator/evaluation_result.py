"""What an evaluation came to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from services.coordinator.judgement import CORRECT, is_correct
from shoal.grpo.pass_at_k import pass_at_k
from shoal.rollout import Completion, FinishReason, Prompt, Score, ScoreOutcome, WeightVersion


@dataclass(frozen=True)
class Answered:
    """One question with its answers; both lists are empty when no generator got through with it in time."""

    prompt: Prompt
    completions: Sequence[Completion]
    scores: Sequence[Score]

    @property
    def scored(self) -> list[Score]:
        """The scores of the answers that could be judged."""
        return [score for score in self.scores if score.outcome is ScoreOutcome.SCORED]

    @property
    def source(self) -> str:
        """The data source that the question comes from."""
        return self.prompt.prompt_id.rpartition(":")[0]


@dataclass(frozen=True)
class EvaluationResult:
    """How one version of the policy did on the held-out questions."""

    version: WeightVersion
    """All answers are of these weights, down to the last token."""
    answered: tuple[Answered, ...]
    num_samples: int
    """Answers that each question was to get."""
    sampling_s: float
    """From the first question to the last token."""

    @cached_property
    def scored(self) -> list[Score]:
        return [score for question in self.answered for score in question.scored]

    @property
    def correct_rate(self) -> float:
        """Share of the scored answers that are correct; 0 without any."""
        return _mean(is_correct(score) for score in self.scored)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the scored answers; 0 without any."""
        return _mean(score.reward for score in self.scored)

    @cached_property
    def pass_at_k(self) -> dict[int, float]:
        """By k; see `shoal.grpo.pass_at_k`. An answer that could not be scored is no answer."""
        return pass_at_k([[is_correct(score) for score in question.scored] for question in self.answered])

    def metrics(self) -> dict[str, float]:
        """By name; docs/metrics.md says what each means. What nothing was measured for is absent."""
        num_asked = len(self.answered) * self.num_samples
        metrics = {
            "eval/num_prompts": float(len(self.answered)),
            "eval/num_completions": float(num_asked),
            "eval/unscored_rate": 1 - len(self.scored) / num_asked,
            "time/evaluating": self.sampling_s,
        }
        completions = [completion for question in self.answered for completion in question.completions]
        if completions:
            lengths = [completion.num_tokens for completion in completions]
            metrics |= {
                "eval/sequence_lengths": fmean(lengths),
                "eval/sequence_lengths_min": float(min(lengths)),
                "eval/sequence_lengths_max": float(max(lengths)),
                "eval/stop_token_rate": _mean(c.finish_reason is FinishReason.STOP for c in completions),
                "eval/truncated_rate": _mean(c.finish_reason is FinishReason.LENGTH for c in completions),
                "eval/actor_tokens_per_second": sum(lengths) / max(self.sampling_s, 1e-9),
            }
        if self.scored:
            metrics["eval/scores"] = self.mean_reward
            metrics["eval/verifiable_correct_rate"] = self.correct_rate
            metrics |= {f"eval/pass_at_{k}": rate for k, rate in self.pass_at_k.items()}
            metrics |= self._by_source()
            metrics |= self._by_verifier()
        return metrics

    def _by_source(self) -> dict[str, float]:
        metrics = {}
        for source in sorted({question.source for question in self.answered}):
            scores = [score for question in self.answered if question.source == source for score in question.scored]
            if scores:
                metrics[f"eval/source/{source}/scores"] = _mean(score.reward for score in scores)
                metrics[f"eval/source/{source}/correct_rate"] = _mean(is_correct(score) for score in scores)
        return metrics

    def _by_verifier(self) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for score in self.scored:
            for part in score.verifier_scores:
                values.setdefault(part.verifier, []).append(part.value)
        metrics = {}
        for verifier, given in sorted(values.items()):
            metrics[f"eval/verifier/{verifier}/reward"] = fmean(given)
            metrics[f"eval/verifier/{verifier}/correct_rate"] = _mean(value >= CORRECT for value in given)
        return metrics


def _mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return fmean(listed) if listed else 0.0
