"""The limits of an episode, which decide whether another turn follows and how long it may be."""

from dataclasses import dataclass
from enum import StrEnum

from shoal.config import RunConfig


class StopReason(StrEnum):
    """Why an episode ended, as ledger, metrics and the environment know it."""

    DONE = "done"
    """The environment ended it."""
    NO_CALL = "no_call"
    """The policy called no tool, and the environment had nothing to say."""
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOKENS = "max_tokens"
    """`sampling.max_completion_tokens`, or the context of the model, is full."""
    TIMEOUT = "timeout"
    """`episodes.timeout_s`, or `coordinator.sampling_timeout_s` for one turn."""
    FAILED = "failed"
    """The environment broke, or workers were lost too often."""

    @property
    def is_limit(self) -> bool:
        """Whether a limit cut the episode off."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TOOL_CALLS, StopReason.MAX_TOKENS, StopReason.TIMEOUT)


@dataclass(frozen=True)
class EpisodeLimits:
    """The limits of an episode."""

    max_turns: int
    max_tool_calls: int
    max_turn_tokens: int | None
    max_tokens: int
    """Most tokens of the policy and the environment after the prompt."""

    @classmethod
    def of(cls, config: RunConfig, num_prompt_tokens: int, max_completion_tokens: int) -> "EpisodeLimits":
        """Returns the limits of an episode after a prompt, from the configuration and the model's context."""
        settings = config.episodes
        return cls(
            settings.max_turns,
            settings.max_tool_calls,
            settings.max_turn_tokens,
            min(max_completion_tokens, config.max_model_len - num_prompt_tokens),
        )

    def reached(self, num_turns: int, num_calls: int) -> StopReason | None:
        """Returns the limit that this many answered turns, with this many calls, have reached."""
        if num_turns >= self.max_turns:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOOL_CALLS if num_calls >= self.max_tool_calls else None

    def turn_tokens(self, num_tokens: int) -> int:
        """Returns the longest length of the next turn after `num_tokens`; 0 or less if no turn fits."""
        left = self.max_tokens - num_tokens
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)

    def is_full(self, num_tokens: int) -> bool:
        """Whether no further token fits."""
        return num_tokens >= self.max_tokens
