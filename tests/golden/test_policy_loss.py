"""Every objective, with its KL term, entropy bonus and averaging, against other systems' values and gradients."""

from collections.abc import Mapping
from typing import Any

from shoal.config import RunConfig
from tests.golden import GoldenCase, golden_cases
from tests.golden.losses import Matrices, aggregation_of, lose, run_with, share

OBJECTIVE = {"policy_gradient_truncated_is": "truncated_is"}
KL_GRADIENT = {"none": "plain", "multiply k3 by the live ratio new/old": "bias_corrected"}
ESTIMATORS = ("k1", "k2", "k3", "ratio_k1")


def options_of(case: GoldenCase) -> dict[str, Any]:
    """Returns the `[loss]` table of a case, without the averaging."""
    settings, objective = case.config, OBJECTIVE.get(case.config["loss"], case.config["loss"])
    options = {"objective": objective, "entropy_coef": settings.get("entropy_coef")}
    for key in ("clip_low", "clip_high", "dual_clip"):
        options[key] = settings.get(key)
    for key in ("tau_positive", "tau_negative", "log_clip_low", "log_clip_high", "k_positive", "lambda_positive",
                "k_negative", "lambda_negative", "positive_weight", "negative_weight", "tau"):  # fmt: skip
        options[f"{objective}_{key}"] = settings.get(key)
    for key in ("divergence_low", "divergence_high", "ratio_cap"):
        options[f"dppo_{key}"] = settings.get(key)
    lower, upper = settings.get("ratio_clip_lower"), settings.get("ratio_clip_upper")
    if objective == "truncated_is":
        options |= {"ratio_low": lower, "ratio_high": upper}
    elif objective == "cispo":
        options |= cispo_bounds(lower, upper, is_cap=case.variant == "cispo_absolute_cap")
        options["cispo_unified_mask"] = settings.get("unified_mask")
    return options


def cispo_bounds(lower: float | None, upper: float, *, is_cap: bool) -> dict[str, Any]:
    """Translates bounds of the ratio itself; TRL's form is a cap, which counts clipped tokens differently."""
    if is_cap:
        return {"cispo_cap": upper}
    if lower is None:
        return {"clip_high": upper - 1}
    return {"clip_high": upper - 1, "clip_low": 1 - lower, "cispo_lower": True}


def kl_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    if "kl" not in settings:
        return {}
    if "open_instruct_kl_estimator" in settings:
        estimator = ESTIMATORS[settings["open_instruct_kl_estimator"]]
        return {"coef": settings["kl_coef"], "estimator": estimator, "input_clamp": 40.0}
    correction = settings.get("kl_bias_correction", "none")
    return {
        "coef": settings["kl_coef"],
        "estimator": settings["kl"],
        "gradient": KL_GRADIENT.get(correction, "score_function"),
    }


def run_of(case: GoldenCase) -> RunConfig:
    return run_with(loss=options_of(case) | aggregation_of(case.config), kl=kl_of(case.config))


def unweighted_loss(outcome: Matrices, run: RunConfig) -> Any:
    loss = outcome.result.policy_loss_C
    if outcome.result.kl_C is not None:
        loss = loss + run.kl.coef * outcome.result.kl_C
    return outcome.spread(loss)


@golden_cases("policy_loss")
def test_the_loss_of_an_objective_and_its_gradient(case: GoldenCase) -> None:
    run = run_of(case)
    outcome = lose(case, run)
    policy = outcome.result.policy
    is_clipped = policy.is_clipped_low_C | policy.is_clipped_high_C
    found = {
        "loss": lambda: outcome.result.loss.detach(),
        "grad_logprobs": lambda: outcome.gradient,
        "grad_entropies": lambda: outcome.entropy_gradient,
        "per_token_loss": lambda: unweighted_loss(outcome, run),
        "per_sequence_loss": lambda: outcome.tokens.completions.mean(outcome.result.policy_loss_C),
        "clip_fraction": lambda: share(is_clipped),
        "clip_fraction_lower": lambda: share(policy.is_dual_clipped_C),
        "approx_kl_old_new": lambda: (outcome.result.baseline_logprobs_C - outcome.result.logprobs_C).mean(),
    }
    for key in case.expected:
        case.check(key, found[key]())
