"""The parts of a mean reward, and the verifiers that decide correctness, from metrics of a step or an evaluation."""

import re
from collections.abc import Iterator, Mapping, Sequence

from shoal.config.tables.reward import RewardConfig

_OF_STEP, _OF_EVALUATION = re.compile(r"objective/(.+)_reward"), re.compile(r"eval/verifier/(.+)/reward")
_PART = re.compile(r"(?:eval/)?reward/(.+)")


def part_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns the metric of each part of a reward by the part's name.

    The value of each verifier comes first, then the parts from an environment, the format and shaping. Returns nothing
    if a reward has a single part, since the part's mean is then the mean reward.
    """
    # The part `verifiable` is the weighted sum of the verifiers.
    parts = dict(_verifiers(metrics)) | {
        match[1]: metric
        for metric in sorted(metrics)
        if (match := _PART.fullmatch(metric)) and match[1] != "verifiable"
    }
    return parts if len(parts) > 1 else {}


def part_means(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns each part with its mean; nothing if a reward has a single part."""
    return [(name, metrics[metric]) for name, metric in part_metrics(metrics).items()]


def part_words(metrics: Mapping[str, float]) -> str:
    """Returns the mean of each part: "gsm8k 0.25, overlong -0.12"; empty if a reward has a single part."""
    return ", ".join(f"{name} {mean:.2f}" for name, mean in part_means(metrics))


def verifier_names(metrics: Mapping[str, float]) -> list[str]:
    """Returns the verifiers that judged."""
    return [name for name, _ in _verifiers(metrics)]


def correct_by(reward: RewardConfig, metrics: Mapping[str, float]) -> list[str]:
    """Returns the verifiers that decide correctness, if more than one verifier judged; else nothing."""
    verifiers = verifier_names(metrics)
    return [name for name in verifiers if reward.says_correct(name)] if len(verifiers) > 1 else []


def meaning_of_correct(verifiers: Sequence[str]) -> str:
    """Describes what makes a completion correct, from the result of `correct_by`; empty without verifiers."""
    if len(verifiers) > 1:
        return f"correct: a value of at least 1 from each verifier that the prompt names, among {', '.join(verifiers)}"
    return f"correct: a value of at least 1 from {verifiers[0]}" if verifiers else ""


def _verifiers(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the name of each verifier with the metric of its mean value."""
    for metric in sorted(metrics):
        match = _OF_STEP.fullmatch(metric) or _OF_EVALUATION.fullmatch(metric)
        # `objective/non_score_reward` has no rate, and is of no verifier.
        if match and (metric.startswith("eval/") or f"objective/{match[1]}_correct_rate" in metrics):
            yield match[1], metric
