"""An evaluation in words."""

from collections.abc import Iterator, Mapping

from services.coordinator.reporting.reward_parts import correct_by, meaning_of_correct, part_words
from services.coordinator.rollout.evaluation.history import RateChange
from services.coordinator.rollout.evaluation.result import EvaluationResult
from shoal.config.tables.reward import RewardConfig
from shoal.quantities import counted


def describe_evaluation(
    reward: RewardConfig, result: EvaluationResult, metrics: Mapping[str, float], change: RateChange | None
) -> str:
    """Describes an evaluation with its metrics and its change since the first evaluation.

    Example: "the policy of step 8 answers 32.0% of 200 held-out questions correctly (95% interval: 25.9% to 38.8%;
    reward 0.35, 0.28 to 0.42)"
    """
    policy = f"the policy of step {result.version.policy_version}"
    questions = counted(len(result.answered), "held-out question")
    details = list(_reward_details(reward, metrics))
    if result.correct:
        low, high = result.correct_rate_interval
        message = f"{policy} answers {result.correct_rate:.1%} of {questions} correctly"
        details = [f"95% interval: {low:.1%} to {high:.1%}", *_rate_details(result, metrics), *details]
    elif result.scored:
        message = f"{policy} has answered {questions}"
    else:
        message = f"{policy} has no scored answer to {questions}"
    message += f" ({'; '.join(details)})" if details else ""
    return f"{message}; since step {change.since_step}: {change}" if change else message


def _rate_details(result: EvaluationResult, metrics: Mapping[str, float]) -> Iterator[str]:
    for k, rate in result.pass_at_k.items():
        if k > 1:
            low, high = metrics[f"eval/pass_at_{k}_low"], metrics[f"eval/pass_at_{k}_high"]
            yield f"pass@{k} {rate:.1%}, {low:.1%} to {high:.1%}"
    if (majority := metrics.get(f"eval/maj_at_{result.num_samples}")) is not None:
        yield f"maj@{result.num_samples} {majority:.1%}"
    rates = {
        source: metrics[name] for source in result.sources if (name := f"eval/source/{source}/correct_rate") in metrics
    }
    if len(rates) > 1:
        yield from (f"{source} {rate:.1%}" for source, rate in rates.items())


def _reward_details(reward: RewardConfig, metrics: Mapping[str, float]) -> Iterator[str]:
    if "eval/scores" not in metrics:
        return
    interval = ""
    if "eval/scores_low" in metrics:
        interval = f", {metrics['eval/scores_low']:.2f} to {metrics['eval/scores_high']:.2f}"
    yield f"reward {metrics['eval/scores']:.2f}{interval}"
    if words := part_words(metrics):
        yield words
    if words := meaning_of_correct(correct_by(reward, metrics)):
        yield words
