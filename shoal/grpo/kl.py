"""The KL divergence from a reference policy as a part of the reward, and the adaptive coefficient of the KL divergence.

Legend: T tokens of a completion.
"""

import numpy as np
import numpy.typing as npt

from shoal.arrays import Float32Array
from shoal.config.tables.kl import KlConfig

Float64Array = npt.NDArray[np.float64]

_MAX_CHANGE = 0.2
"""The bound of the controller's relative error, in either direction."""


def reward_kl(config: KlConfig, logprobs_T: Float32Array, reference_logprobs_T: Float32Array) -> Float64Array:
    """Estimates the KL of each token, [T].

    With d = logp - reference, clamped to +-`input_clamp`, the estimate is d (k1), d^2/2 (k2), exp(-d) + d - 1 (k3) or
    |d| (abs), clamped to +-`output_clamp`. The estimate is 0 for a token whose log-probability is missing.
    """
    d_T = np.nan_to_num(logprobs_T.astype(np.float64) - reference_logprobs_T.astype(np.float64), nan=0.0)
    if config.input_clamp is not None:
        d_T = np.clip(d_T, -config.input_clamp, config.input_clamp)
    match config.estimator:
        case "k1":
            kl_T = d_T
        case "k2":
            kl_T = d_T**2 / 2
        case "k3":
            kl_T = np.expm1(-d_T) + d_T
        case "abs":
            kl_T = np.abs(d_T)
        case "ratio_k1":
            raise ValueError("kl.estimator = ratio_k1 needs a ratio, which rewards do not have: use k1, k2, k3 or abs")
    if config.output_clamp is not None:
        kl_T = np.clip(kl_T, -config.output_clamp, config.output_clamp)
    return kl_T


def kl_sums(logprobs_T: Float32Array, reference_logprobs_T: Float32Array) -> Float64Array:
    """Computes the estimators k1, k2 and k3 of a whole completion, [3]: sums over its tokens, not clamped."""
    d_T = np.nan_to_num(logprobs_T.astype(np.float64) - reference_logprobs_T.astype(np.float64), nan=0.0)
    return np.array([d_T.sum(), (d_T**2 / 2).sum(), (np.expm1(-d_T) + d_T).sum()])


def adapted_coef(config: KlConfig, coef: float, mean_kl: float, num_completions: int) -> float:
    """Computes the next step's coefficient: `coef x (1 + clip(kl / target - 1, +-0.2) x n / horizon)`.

    Here kl is first averaged over the tokens of each completion, then over n completions (arXiv:1909.08593; ROLL and
    verl also average over tokens, so that the target does not depend on length). Without a target the result is `coef`
    itself. At most `horizon` completions count: otherwise one large step could flip the sign.
    """
    if config.target is None:
        return coef
    error = min(max(mean_kl / config.target - 1, -_MAX_CHANGE), _MAX_CHANGE)
    return coef * (1 + error * min(1.0, num_completions / config.horizon))
