"""Importance weights, filters, masks and mismatch metrics against other systems' values and gradients."""

from collections.abc import Mapping
from typing import Any

import torch

from services.learner.gap import GapSums
from services.learner.loss.correction import entropy_threshold, filter_statistic, off_policy_divergence
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.objectives.tokens import known_baseline
from shoal.config import RunConfig
from tests.golden import GoldenCase, golden_cases
from tests.golden.losses import Matrices, aggregation_of, lose, matrix_of, run_with, share

UNBOUNDED = 0.0
KEPT_WHEN_EMPTY = 1.0
"""A sequence without tokens has a ratio of 1, which passes, and is never off-policy."""
LEVEL = {"seq_sum": "sequence_sum", "seq_mean": "sequence_mean", "seq_max": "sequence_max"}


def between(low: float | None, high: float | None, **fields: Any) -> dict[str, Any]:
    return {"low": low, "high": high, **fields}


def correction_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    mode = settings["mode"].replace("_", " ")
    cap_low, cap_high = settings.get("cap_low"), settings.get("cap_high")
    weight_high, clamp_high = (UNBOUNDED if most is None else most for most in (cap_high, settings.get("clamp_high")))
    unit = {"token": "token", "sequence": "sequence_sum", "geometric": "sequence_mean"}
    if mode == "rejection sampling":
        return {"filters": [rejection(*pair) for pair in zip(settings["options"], settings["thresholds"], strict=True)]}
    if mode == "divergence gate":
        return {"weight": "token", "weight_high": UNBOUNDED, "filters": [gate(settings)]}
    if mode.startswith("total-variation"):
        test = between(None, settings["tv_high"], statistic="tv", level="sequence_mean", only_harmful=True)
        return {"weight": "token", "weight_high": clamp_high, "filters": [test]}
    if mode == "token truncation plus a filter":
        level = unit[settings["level"]]
        ratio = between(settings["ratio_low"], settings["ratio_high"], level=level)
        low, high = settings["probability_difference_low"], settings["probability_difference_high"]
        difference = between(low, high, statistic="probability_difference", level=level)
        return {"weight": "token", "weight_high": weight_high, "filters": [ratio, difference]}
    kind = mode.split()[0].split("-")[0]
    weight = "token" if "token weights" in mode else kind
    if "mask_low" in settings:
        test = between(settings["mask_low"], settings["mask_high"], level=unit[kind])
        return {"weight": weight, "weight_high": clamp_high, "filters": [test]}
    if "mask" in mode:
        return {"weight": weight, "weight_high": UNBOUNDED, "filters": [between(cap_low, cap_high, level=unit[kind])]}
    normalize = True if "divided by the mean" in mode else None
    return {"weight": weight, "weight_low": cap_low, "weight_high": weight_high, "normalize": normalize}


def rejection(option: str, thresholds: str) -> dict[str, Any]:
    """Translates an option of verl. Its k1 bounds the logarithm of the inverse ratio by the logarithms of bounds."""
    level, statistic = option.rsplit("_", 1)
    bounds = [float(number) for number in str(thresholds).split("_")]
    level = LEVEL.get(level, level)
    if statistic == "k1":
        # A single number bounds both sides.
        low, high = bounds if len(bounds) == 2 else (1 / bounds[0], bounds[0])
        return between(1 / high, 1 / low, level=level, reject=True)
    return between(None, bounds[-1], statistic=statistic, level=level, reject=True)


def gate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a filter that bounds a divergence, of tokens or of their mean over the sequence."""
    level = "token" if settings["level"] == "token" else "sequence_mean"
    most = settings["threshold"]
    if settings["statistic"].startswith("|"):
        return between(None, most, statistic="probability_distance", level=level)
    return between(None, most, statistic="binary_kl", level=level)


def loss_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    return aggregation_of({"aggregation": "token-mean"} | dict(settings)) | {
        "baseline": "proximal",
        "clip_low": settings.get("clip_low"),
        "clip_high": settings.get("clip_high"),
        "top_entropy_share": settings.get("top_entropy_quantile"),
    }


def run_of(case: GoldenCase) -> RunConfig:
    mode, loss = case.config["mode"], loss_of(case.config)
    if mode == "off-policy sequence mask":
        return run_with(loss=loss | {"off_policy_mask": case.config["threshold"]})
    if mode == "top-entropy token mask":
        return run_with(loss=loss)
    return run_with(loss=loss, correction=correction_of(case.config))


class Outcome:
    """The results of a case's step, by the case's names."""

    def __init__(self, case: GoldenCase) -> None:
        self.case = case
        self.run = run_of(case)
        self.behavior_name = case.config.get("compared_with", "rollout_logprobs")
        if self.behavior_name not in case.inputs:
            self.behavior_name = "old_logprobs"
        # Some cases cover weights and masks alone: then any loss will do, here that at the proximal policy.
        inputs = {
            "logprobs": case.inputs["old_logprobs"],
            "advantages": [0.0] * len(case.inputs["mask"]),
            **case.inputs,
        }
        self.step: Matrices = lose(
            GoldenCase(**{**vars(case), "inputs": inputs}), self.run, behavior=self.behavior_name
        )
        assert self.step.mini_batch.surveyed is not None
        self.surveyed = self.step.mini_batch.surveyed
        self.correction = self.surveyed.correction
        self.tokens = self.step.tokens
        self.proximal = self.surveyed.proximal_logprobs_N
        self.behavior = known_baseline(self.tokens.behavior_logprobs_N, self.proximal)

    @property
    def applied_weights(self) -> torch.Tensor:
        """[N] the weights; 0 for tokens that a mask drops."""
        is_dropped = self.correction.is_dropped_C | ~self.surveyed.is_kept_N
        return torch.where(is_dropped, 0.0, self.correction.weights_C)

    def matrix(self, values_N: torch.Tensor) -> Any:
        matrix = torch.zeros(self.step.mask.shape, dtype=torch.float64)
        matrix[self.step.mask] = values_N.double()
        return matrix.numpy()

    def of_sequences(self, values_N: torch.Tensor, empty: float) -> torch.Tensor:
        """Returns the value that all tokens of a sequence share, [B]."""
        return self.tokens.completions.max(values_N).where(self.tokens.completions.num_tokens() > 0, empty)

    def statistic(self, number: int = 0) -> torch.Tensor:
        return filter_statistic(
            self.run.correction.filters[number], self.proximal, self.behavior, self.tokens.completions
        )

    def result(self, key: str) -> Any:
        correction, completions = self.correction, self.tokens.completions
        keeps_apart = {"modified_mask", "kept_tokens"} & set(self.case.expected)
        gap = self.proximal - self.behavior
        match key:
            case "loss":
                return self.step.result.loss.detach()
            case "grad_logprobs":
                return self.step.gradient
            case "weights":
                return self.matrix(correction.weights_C if keeps_apart else self.applied_weights)
            case "modified_mask" | "kept_tokens":
                return self.matrix(self.mask_of(key))
            case "kept_sequences":
                is_dropped = torch.zeros(len(self.tokens), dtype=torch.bool)
                is_dropped[self.step.result.tokens.where_C] = self.step.result.is_dropped_C
                return self.of_sequences((~is_dropped).double(), KEPT_WHEN_EMPTY)
            case "sequence_weights":
                return self.of_sequences(torch.exp(completions.spread(completions.sum(gap))), 1.0)
            case "sequence_geometric_ratio":
                return torch.exp(completions.mean(gap))
            case "sequence_tv":
                return self.of_sequences(self.statistic(), 0.0)
            case "statistic":
                return self.matrix(self.statistic())
            case "mean_kl":
                return off_policy_divergence(self.step.result.logprobs_C, self.tokens.behavior_logprobs_N, completions)
            case "entropy_threshold":
                entropies = matrix_of(self.case, "entropies")[self.step.mask]
                return entropy_threshold(entropies, self.run.loss.top_entropy_share)
        return share(self.mask_of(key))

    def mask_of(self, key: str) -> torch.Tensor:
        """Returns the tokens that a mask shows or a fraction counts, [N] bool."""
        correction = self.correction
        match key:
            case "modified_mask":
                return ~correction.is_rejected_C
            case "kept_tokens":
                return ~correction.is_dropped_C
            case "clipped_fraction":
                return correction.is_truncated_C
            case "dropped_fraction" | "rejected_token_fraction":
                return correction.is_dropped_C
            case "dropped_low_fraction":
                return correction.is_dropped_low_C
            case "dropped_high_fraction":
                return correction.is_dropped_C & ~correction.is_dropped_low_C
        raise AssertionError(f"{self.case.name}: there is no result {key}")

    def metrics(self) -> dict[str, float]:
        sums = GapSums(self.tokens.completions.num)
        sums.add(self.proximal, self.tokens.behavior_logprobs_N, self.tokens.completions, self.applied_weights)
        return sums.mismatch(count_empty=True) | {"out_of_range_fraction": share(self.correction.is_dropped_C)}


METRIC = {
    "kl_rollout_to_train": "kl",
    "k3_kl": "k3",
    "training_perplexity": "learner_perplexity",
    "rollout_perplexity": "engine_perplexity",
}


def check_metrics(case: GoldenCase, measured: Mapping[str, float]) -> None:
    for name, wanted in case.expected["metrics"].items():
        got = measured[METRIC.get(name, name)]
        assert abs(got - wanted) <= case.tolerance * max(1.0, abs(wanted)), (
            f"{case.name}: {name} {got}, wanted {wanted}"
        )


@golden_cases("importance_correction", but=("mismatch_metrics",))
def test_weights_masks_loss_and_gradient(case: GoldenCase) -> None:
    outcome = Outcome(case)
    for key in case.expected:
        if key == "metrics":
            check_metrics(case, outcome.metrics())
        else:
            case.check(key, outcome.result(key))


@golden_cases("importance_correction", only=("mismatch_metrics",))
def test_the_gap_between_engine_and_learner(case: GoldenCase) -> None:
    mask = matrix_of(case, "mask").bool()
    rows = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    learner, engine = (matrix_of(case, name)[mask] for name in ("old_logprobs", "rollout_logprobs"))
    sums = GapSums(len(mask))
    sums.add(learner, engine, Completions(rows, len(mask)))
    check_metrics(case, sums.mismatch(count_empty=True))
