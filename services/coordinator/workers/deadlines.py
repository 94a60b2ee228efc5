"""Computes deadlines that the configuration leaves unset, from numbers of tokens and the rates measured in the run."""

from shoal.config.run import RunConfig

_LEAST_SAMPLING_S, _LEAST_STEP_S = 600.0, 3600.0
_TOKEN_S = 0.1
"""Seconds per token of one completion. Full engines take 0.03 s per token (a 7B model on an H100)."""
_TRAINED_TOKEN_S = 0.001
_SLOWER = 5.0
"""A call may take this many times as long as the slowest recent token implies."""
_MIN_TOKENS = 256
"""A completion of a few tokens shows how long a prompt takes, and not a token."""
_FORGETS = 0.98


class Pace:
    """The longest recent time per token, in seconds; 0 before the first token."""

    def __init__(self) -> None:
        self.token_s = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Records the time in which some tokens were trained on, or sampled one after the other."""
        self.token_s = max(seconds / max(num_tokens, _MIN_TOKENS), _FORGETS * self.token_s)


def sampling_timeout_s(config: RunConfig, pace: Pace) -> float:
    """Returns `coordinator.sampling_timeout_s`; if it is unset, the time that the longest completion may take."""
    if config.coordinator.sampling_timeout_s is not None:
        return config.coordinator.sampling_timeout_s
    return max(_LEAST_SAMPLING_S, config.max_completion_tokens * max(_TOKEN_S, _SLOWER * pace.token_s))


def train_step_timeout_s(config: RunConfig, pace: Pace, num_tokens: int) -> float:
    """Returns `coordinator.train_step_timeout_s`; if it is unset, the time that a step of `num_tokens` may take."""
    if config.coordinator.train_step_timeout_s is not None:
        return config.coordinator.train_step_timeout_s
    return max(_LEAST_STEP_S, num_tokens * max(_TRAINED_TOKEN_S, _SLOWER * pace.token_s))
