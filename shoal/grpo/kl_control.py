"""The adaptive KL coefficient (arXiv:1909.08593): a proportional controller on the logarithm of the coefficient."""

_MOST_ERROR = 0.2


def adapted_kl_coef(coef: float, kl: float, *, target: float, horizon: int, num_completions: int) -> float:
    """The coefficient after a step: coef x (1 + clip(kl / target - 1, -0.2, 0.2) x num_completions / horizon).

    `kl` is the step's KL to the reference in nats a token, the mean over completions of their token means (as ROLL and
    verl take it). Where it is above `target` the coefficient grows, by at most a fifth in `horizon` completions.
    """
    error = max(-_MOST_ERROR, min(_MOST_ERROR, kl / target - 1))
    return max(0.0, coef * (1 + error * num_completions / horizon))
