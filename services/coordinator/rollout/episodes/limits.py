"""The limits of an episode: whether another turn follows, how long the turn may be, and when the time is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from shoal.config import RunConfig

_POLL_S = 0.25
"""Shortest time between two looks, in seconds, while the clock is stopped just before the limit."""


class StopReason(StrEnum):
    """The reason why an episode ended, as named in the ledger, in metrics, and to the environment."""

    DONE = "done"
    """The environment ended the episode."""
    NO_CALL = "no_call"
    """The policy called no tool, and the environment did not answer."""
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
    """Maximum number of tokens of the policy and the environment after the prompt."""

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
        """Returns the limit that an episode with this number of answered turns and calls has reached."""
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


class EpisodeClock:
    """Measures the wall time of an episode, and ends the block of `limit` when the time is over."""

    def __init__(self, limit_s: float, running_s: Callable[[], float]) -> None:
        """`running_s` is a clock that stops in a pause."""
        self._limit_s = limit_s
        self._running_s = running_s
        self._used_s = 0.0
        self._since = running_s()
        """Time at which the clock last started; meaningless while the clock is stopped."""
        self._num_waits = 0
        """Number of blocks that have stopped the clock; several calls of an agent wait at the same time."""

    @property
    def used_s(self) -> float:
        """The time that the clock shows, in seconds."""
        return self._used_s + (0.0 if self._num_waits else self._running_s() - self._since)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock while the block runs. The clock restarts when the last such block has ended."""
        self._used_s = self.used_s
        self._num_waits += 1
        try:
            yield
        finally:
            self._num_waits -= 1
            self._since = self._running_s()

    @contextlib.asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Ends the block with `TimeoutError` when the time is over."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            timer = loop.call_later(self._limit_s, lambda: check())

            def check() -> None:
                nonlocal timer
                left_s = self._limit_s - self.used_s
                if left_s > 0:
                    timer = loop.call_later(max(left_s, _POLL_S), check)
                elif not scope.expired():
                    scope.reschedule(loop.time())

            try:
                yield
            finally:
                timer.cancel()
