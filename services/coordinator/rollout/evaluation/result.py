"""The result of an evaluation."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from services.coordinator.rollout.episodes.metrics import evaluation_metrics, played
from shoal.config.tables.reward import RewardConfig
from shoal.grpo.correctness import CORRECT, is_correct
from shoal.grpo.intervals import Interval, mean_interval, rate_interval, reward_interval
from shoal.grpo.pass_at_k import pass_at_k, pass_shares
from shoal.rollout import Completion, FinishReason, Prompt, WeightVersion
from shoal.scores import Score, ScoreOutcome


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question with its answers. The question has no answers if no generator finished in time."""

    prompt: Prompt
    completions: Sequence[Completion]
    scores: Sequence[Score]
    reward: RewardConfig = field(default_factory=RewardConfig)
    """The configuration of the verifiers that decide correctness."""

    @property
    def scored(self) -> list[Score]:
        """The scores of the answers that could be judged."""
        return [score for score in self.scores if score.outcome is ScoreOutcome.SCORED]

    @cached_property
    def correct(self) -> list[bool]:
        """Whether each answer that could be judged is correct; empty if nothing decides correctness."""
        verdicts = [is_correct(self.reward, score) for score in self.scored]
        return [verdict for verdict in verdicts if verdict is not None]

    @property
    def majority(self) -> float | None:
        """The probability that the most frequent answer is correct; a tie is broken at random.

        A missing answer has no vote; without votes the probability is 0. None unless exactly one verifier of each score
        compares answers with each other, and correctness is judged.
        """
        votes = [[part.answer for part in score.verifier_scores if part.answer is not None] for score in self.scored]
        if any(len(answers) != 1 for answers in votes) or len(self.correct) != len(votes):
            return None
        counts = Counter(answer for (answer,) in votes if answer)
        winners = {answer for answer, count in counts.items() if count == max(counts.values())}
        # The winners are equally frequent, so the mean over their votes is the mean over the winners.
        return _mean(right for (answer,), right in zip(votes, self.correct, strict=True) if answer in winners)

    @property
    def source(self) -> str:
        """The data source that the question comes from."""
        return self.prompt.prompt_id.rpartition(":")[0]


@dataclass(frozen=True)
class EvaluationResult:
    """The answers of one version of the policy to the held-out questions."""

    version: WeightVersion
    """The weights that sampled every token of the answers."""
    answered: tuple[AnsweredQuestion, ...]
    num_samples: int
    """Answers requested for each question."""
    sampling_s: float
    """Seconds from the first question to the last token."""
    ks: tuple[int, ...] = ()
    """The values of k for pass@k; if empty, the powers of 2 and `num_samples`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """The number of omitted questions, by reason."""

    @cached_property
    def scored(self) -> list[Score]:
        """The scores of all answers that could be judged."""
        return [score for question in self.answered for score in question.scored]

    @cached_property
    def correct(self) -> list[bool]:
        """Whether each answer that could be judged is correct; empty if nothing decides correctness."""
        return [verdict for question in self.answered for verdict in question.correct]

    @property
    def correct_rate(self) -> float:
        """Share of the scored answers that are correct; 0 without scored answers."""
        return _mean(self.correct)

    @cached_property
    def correct_rate_interval(self) -> Interval:
        """The 95 % confidence interval of `correct_rate`."""
        return rate_interval([question.correct for question in self.answered])

    @property
    def correct_rates(self) -> dict[str, float]:
        """The share of correct answers, by prompt id, for questions with an answer that was judged correct or wrong."""
        return {
            question.prompt.prompt_id: fmean(correct) for question in self.answered if (correct := question.correct)
        }

    @property
    def sources(self) -> list[str]:
        """The data sources of the questions with a scored answer."""
        return sorted({question.source for question in self.answered if question.scored})

    @property
    def mean_reward(self) -> float:
        """Mean reward of the scored answers; 0 without scored answers."""
        return _mean(score.reward for score in self.scored)

    @cached_property
    def mean_reward_interval(self) -> Interval | None:
        """The 95 % interval of the mean of the questions' mean rewards; None if all are equal, or for few questions."""
        return reward_interval(
            [fmean(score.reward for score in question.scored) for question in self.answered if question.scored]
        )

    @cached_property
    def pass_at_k(self) -> dict[int, float]:
        """Pass@k by k, see `shoal.grpo.pass_at_k`; answers that could not be scored do not count."""
        return pass_at_k([question.correct for question in self.answered], self.ks)

    @property
    def majority(self) -> list[float] | None:
        """`AnsweredQuestion.majority` of each question whose answers are all scored, as for the largest k of pass@k.

        None if a question has no majority. Also None with one or two answers, whose majority is no better than one
        answer.
        """
        return self._majority(self.answered)

    def _majority(self, questions: Iterable[AnsweredQuestion]) -> list[float] | None:
        whole = [question.majority for question in questions if len(question.scored) == self.num_samples]
        found = [share for share in whole if share is not None]
        return found if self.num_samples > 2 and found and len(found) == len(whole) else None

    def metrics(self) -> dict[str, float]:
        """Computes the metrics, by name; docs/metrics.md gives their meaning. Unmeasured metrics are absent."""
        num_requested = len(self.answered) * self.num_samples
        metrics = {
            "eval/num_prompts": float(len(self.answered)),
            "eval/num_prompts_left_out": float(sum(self.left_out.values())),
            "eval/num_completions": float(num_requested),
            "eval/unscored_rate": 1 - len(self.scored) / num_requested,
            "time/evaluating": self.sampling_s,
        }
        completions = [completion for question in self.answered for completion in question.completions]
        if completions:
            lengths = [completion.num_tokens for completion in completions]
            num_sampled = sum(c.num_tokens if c.loss_mask is None else int(c.loss_mask.sum()) for c in completions)
            metrics |= {
                "eval/sequence_lengths": fmean(lengths),
                "eval/sequence_lengths_min": float(min(lengths)),
                "eval/sequence_lengths_max": float(max(lengths)),
                "eval/stop_token_rate": _mean(c.finish_reason is FinishReason.STOP for c in completions),
                "eval/truncated_rate": _mean(c.finish_reason is FinishReason.LENGTH for c in completions),
                "eval/actor_tokens_per_second": num_sampled / max(self.sampling_s, 1e-9),
            }
            metrics |= evaluation_metrics(played((one.prompt, one.completions) for one in self.answered))
        if self.scored:
            metrics |= _with_interval("eval/scores", self.mean_reward, self.mean_reward_interval)
            if self.correct:
                metrics |= _with_interval("eval/verifiable_correct_rate", self.correct_rate, self.correct_rate_interval)
            for k, shares in pass_shares([question.correct for question in self.answered], self.ks).items():
                metrics |= _with_interval(f"eval/pass_at_{k}", fmean(shares), mean_interval(shares))
            if (majority := self.majority) is not None:
                metrics |= _with_interval(f"eval/maj_at_{self.num_samples}", fmean(majority), mean_interval(majority))
            metrics |= self._by_source()
            metrics |= self._by_verifier()
        return metrics

    def _by_source(self) -> dict[str, float]:
        metrics = {}
        for source in self.sources:
            questions = [question for question in self.answered if question.source == source]
            scores = [score for question in questions for score in question.scored]
            correct, name = [question.correct for question in questions], f"eval/source/{source}"
            metrics[f"{name}/scores"] = _mean(score.reward for score in scores)
            if any(correct):
                rate = _mean(verdict for verdicts in correct for verdict in verdicts)
                metrics |= _with_interval(f"{name}/correct_rate", rate, rate_interval(correct))
            metrics |= {f"{name}/pass_at_{k}": rate for k, rate in pass_at_k(correct, self.ks).items()}
            if (majority := self._majority(questions)) is not None:
                metrics[f"{name}/maj_at_{self.num_samples}"] = fmean(majority)
        return metrics

    def _by_verifier(self) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for score in self.scored:
            for part in score.verifier_scores:
                values.setdefault(part.verifier, []).append(part.value)
        metrics = mean_parts("eval/reward/", self.scored)
        for verifier, measured in sorted(values.items()):
            metrics[f"eval/verifier/{verifier}/reward"] = fmean(measured)
            metrics[f"eval/verifier/{verifier}/correct_rate"] = _mean(value >= CORRECT for value in measured)
        return metrics


def _with_interval(name: str, value: float, interval: Interval | None) -> dict[str, float]:
    if interval is None:
        return {name: value}
    return {name: value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _mean(values: Iterable[float]) -> float:
    """Returns the mean; 0 without values."""
    listed = list(values)
    return fmean(listed) if listed else 0.0


def mean_parts(prefix: str, scored: Sequence[Score]) -> dict[str, float]:
    """Returns the mean of each part of the rewards, 0 for a part that a completion lacks, as metrics with `prefix`."""
    by_part: dict[str, list[float]] = {}
    for score in scored:
        for share in score.parts:
            by_part.setdefault(share.name, []).append(share.value)
    return {f"{prefix}{name}": math.fsum(values) / len(scored) for name, values in sorted(by_part.items())}
