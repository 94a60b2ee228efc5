"""Metrics of a step (metrics.json): means over tokens, the gap between engine and learner; and pass@k."""

import torch

from services.learner.gap import GapSums
from services.learner.loss.objectives.completions import Completions
from services.learner.metrics import SUMS, StepRecord, TokenSums, step_metrics
from shoal.grpo.pass_at_k import pass_at_k
from tests.golden import GoldenCase, as_array, golden_cases


@golden_cases("metrics", only=("token_weighted_metrics",))
def test_means_are_over_tokens_however_they_were_split(case: GoldenCase) -> None:
    """All tokens of a micro-batch have its mean value, so the variance over tokens is that of the means."""
    record = StepRecord(losses=[0.0], grad_norms=[1.0], num_completions=1)
    names = ("tokens", "ratio", "policy_loss", "clip_fraction")
    for num_tokens, ratio, policy_loss, clipped in zip(*(case.inputs[name] for name in names), strict=True):
        values = {
            "num_tokens": 1.0,
            "ratio": ratio,
            "ratio_squared": ratio**2,
            "policy_loss": policy_loss,
            "clipped_high": clipped,
        }
        sums = torch.tensor([num_tokens * values.get(name, 0.0) for name in SUMS], dtype=torch.float64)
        record.applied.merge(TokenSums(sums))
    metrics = step_metrics(record, [], num_epochs=1, kl_coef=0.0, has_reference=False, duration_s=1.0)
    case.check("ratio", metrics["val/ratio"])
    case.check("ratio_variance", metrics["val/ratio_var"])
    case.check("policy_loss", metrics["loss/policy_avg"])
    case.check("clip_fraction", metrics["policy/clipfrac_avg"])


@golden_cases("metrics", only=("logprob_difference",))
def test_the_gap_between_engine_and_learner(case: GoldenCase) -> None:
    mask = torch.tensor(as_array(case.inputs["mask"])) > 0
    learner, engine = (
        torch.tensor(as_array(case.inputs[name]))[mask] for name in ("trainer_logprobs", "rollout_logprobs")
    )
    completion = torch.arange(len(mask)).unsqueeze(1).expand(mask.shape)[mask]
    sums = GapSums(len(mask))
    sums.add(learner, engine, Completions(completion, len(mask)))
    metrics = sums.metrics()
    case.check("mean", metrics["val/logprob_gap_mean"])
    case.check("max", metrics["val/logprob_gap_max"])
    case.check("std", metrics["val/logprob_gap_std"])
    case.check("reverse_kl", metrics["mismatch/reverse_kl"])


@golden_cases("metrics", only=("pass_at_k",))
def test_pass_at_k_equals_that_of_other_systems(case: GoldenCase) -> None:
    rates = pass_at_k([[bool(correct) for correct in answers] for answers in case.inputs["correct"]])
    for k, want in case.expected["unbiased"].items():
        assert abs(rates[int(k)] - want) <= case.tolerance * max(1.0, abs(want)), f"{case.name}: pass@{k}"
    case.check("pass_at_1", rates[1])
    case.check("any_correct_of_n", rates[max(rates)])
