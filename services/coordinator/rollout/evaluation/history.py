"""The evaluations of a run, question by question, and the change of the policy since the first."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from services.coordinator.store.files.step_file import StepFile
from shoal.grpo.intervals import Interval, change_interval

EVALUATIONS = "evaluations.jsonl"
"""The name of the file in a run's folder."""
_RATES, _CORRECT, _DATA = "correct_rates", "correct", "data"


@dataclass(frozen=True)
class RateChange:
    """The change of the correct rate since the run's first evaluation, over the questions scored in both."""

    since_step: int
    rate_before: float
    rate: float
    interval: Interval
    """A 95 % confidence interval of the change, paired by question."""
    num_questions: int

    @property
    def change(self) -> float:
        """The change, from -1 to 1."""
        return self.rate - self.rate_before

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval includes 0."""
        return self.interval.low <= 0 <= self.interval.high

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the change, by name."""
        return {
            "eval/correct_rate_change": self.change,
            "eval/correct_rate_change_low": self.interval.low,
            "eval/correct_rate_change_high": self.interval.high,
        }

    def attributes(self) -> dict[str, float]:
        """Returns the change as attributes of an event."""
        return {**{name: value for name, value in vars(self).items() if name != "interval"}, **self.interval._asdict()}

    @classmethod
    def from_attributes(cls, values: Mapping[str, float]) -> "RateChange":
        """Makes a change from the attributes that `attributes` returned."""
        return cls(
            since_step=int(values["since_step"]),
            rate_before=values["rate_before"],
            rate=values["rate"],
            interval=Interval(values["low"], values["high"]),
            num_questions=int(values["num_questions"]),
        )

    def __str__(self) -> str:
        """Describes the change: "15.0 points better, which is within noise (95% interval: -3.2 to +30.5)"."""
        verdict = "better" if self.change > 0 else "worse" if self.change < 0 else "better or worse"
        noise = ", which is within noise" if self.is_within_noise else ""
        low, high = (f"{100 * end:+.1f}" for end in self.interval)
        return f"{100 * abs(self.change):.1f} points {verdict}{noise} (95% interval: {low} to {high})"


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation that later ones are compared with."""

    step: int
    rates: Mapping[str, float]
    data: Mapping[str, str]
    """The digests of the questions' data by name; empty if they are unknown."""


class EvaluationHistory:
    """The file `evaluations.jsonl` of a run: each question's share of correct answers, in each evaluation.

    Only evaluations with the same meaning of correct and the same questions are compared. So a resume that changes
    `reward.correct`, or finds other data, starts a new comparison.
    """

    def __init__(self, path: Path, correct: Sequence[str] = ()) -> None:
        """`correct` is `reward.correct`."""
        self._file = StepFile(path)
        self._correct = sorted(correct)
        self._firsts: list[_Evaluation] = []
        """The first evaluation of each version of the data."""
        self._data: dict[int, Mapping[str, str]] = {}
        """The digests of the data of each evaluation, by its step."""

    def keep_until(self, step: int) -> None:
        """Removes the evaluations of later steps, since a restore discards these steps."""
        rows = self._file.keep_until(step)
        self._data = _data_of(rows)
        self._firsts = []
        for row in rows:
            if row[_RATES] and row.get(_CORRECT, []) == self._correct:
                self._remember(_Evaluation(row["step"], row[_RATES], self._data[row["step"]]))

    def is_comparable(self, step: int, data: Mapping[str, str]) -> bool:
        """Whether the evaluation of a step used the same questions as an evaluation of `data`, as far as is known."""
        return _are_same(self._data.get(step, {}), data)

    def _remember(self, evaluation: _Evaluation) -> _Evaluation:
        """Returns the first evaluation with the data of `evaluation`, which may be `evaluation` itself."""
        first = next((one for one in self._firsts if _are_same(one.data, evaluation.data)), None)
        if first is None:
            self._firsts.append(evaluation)
        return first or evaluation

    def add(
        self, step: int, correct_rates: Mapping[str, float], data: Mapping[str, str] | None = None
    ) -> RateChange | None:
        """Records an evaluation by prompt id, with the digests of its data. Returns the change since the first
        evaluation of an earlier step with the same data."""
        self._data[step] = data or {}
        told = {_CORRECT: self._correct, _DATA: data}
        self._file.add(step, {_RATES: correct_rates, **{name: value for name, value in told.items() if value}})
        if not correct_rates:
            return None
        first = self._remember(_Evaluation(step, correct_rates, data or {}))
        both = [(first.rates[prompt_id], rate) for prompt_id, rate in correct_rates.items() if prompt_id in first.rates]
        if first.step == step or not both:
            return None
        return RateChange(
            since_step=first.step,
            rate_before=fmean(earlier for earlier, _ in both),
            rate=fmean(later for _, later in both),
            interval=change_interval([later - earlier for earlier, later in both]),
            num_questions=len(both),
        )


def steps_with_other_questions(path: Path) -> list[int]:
    """Reads from `evaluations.jsonl` the steps whose evaluation used other questions than the previous evaluation."""
    data = sorted(_data_of(StepFile(path).read()).items())
    return [step for (_, before), (step, now) in itertools.pairwise(data) if not _are_same(before, now)]


def _data_of(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, str]]:
    """Returns the digests of the data of each evaluation, by its step; those of a later line for a line without any."""
    data: Mapping[str, str] = {}
    return {row["step"]: (data := row.get(_DATA) or data) for row in reversed(rows)}


def _are_same(data: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Returns whether two evaluations had the same data, as far as their names agree."""
    return all(other.get(name, digest) == digest for name, digest in data.items())
