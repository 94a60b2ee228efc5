"""The KL estimators, their clamps and gradients, against other systems' values."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from services.learner.loss.kl import token_kl
from services.learner.loss.objectives import PolicyTokens
from services.learner.loss.objectives.completions import Completions
from shoal.config.tables.kl import KlConfig
from tests.golden import GoldenCase, golden_cases
from tests.golden.losses import matrix_of

OPEN_INSTRUCT = ("k1", "k2", "k3", "ratio_k1")


def kl_config(settings: Mapping[str, Any]) -> KlConfig:
    """Translates a case's words into our table: "k3+", "k1 value, off-policy k2 gradient", "output +-10" and so on."""
    name, clamps = settings["estimator"], settings["clamp"] or ""
    if numbered := re.fullmatch(r"open-instruct (\d)", name):
        estimator = OPEN_INSTRUCT[int(numbered[1])]
    else:
        estimator = re.match(r"k\d|abs", name)[0]
    gradient = "plain"
    for word, form in {"+": "straight_through", "x ratio": "bias_corrected", "off-policy": "off_policy"}.items():
        if word in name:
            gradient = form
    bound = re.search(r"input \+-([\d.]+)|clamp\([^,]+, -([\d.]+)", clamps)
    most = re.search(r"output \+-([\d.]+)", clamps)
    return KlConfig.model_validate(
        {
            "coef": 1.0,
            "estimator": estimator,
            "gradient": gradient,
            "input_clamp": float(bound[1] or bound[2]) if bound else None,
            "output_clamp": float(most[1]) if most else None,
        }
    )


@golden_cases("kl")
def test_the_estimate_of_each_token_and_its_gradient(case: GoldenCase) -> None:
    logprobs = matrix_of(case, "logprobs").requires_grad_()
    flat = logprobs.flatten()
    baseline = matrix_of(case, "old_logprobs").flatten() if "old_logprobs" in case.inputs else flat.detach()
    nothing = torch.zeros_like(baseline)
    tokens = PolicyTokens(flat, flat.detach(), baseline, nothing, nothing, Completions(nothing.long(), 1))
    estimate = token_kl(tokens, matrix_of(case, "ref_logprobs").flatten(), kl_config(case.config))
    estimate.sum().backward()
    case.check("kl", estimate.detach().reshape(logprobs.shape))
    case.check("grad_logprobs", logprobs.grad)
