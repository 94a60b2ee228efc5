"""Losses of one group, episode or turn: how often work on it failed, and the growing pauses before it is tried again.

A prompt that kills engines must not kill one after another, and a group that nobody can finish must not hold the order.
"""

import asyncio

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


class WorkFailed(Exception):
    """A worker could not finish its part of a group; another one may try."""

    def __init__(self, worker: str, reason: str, *, is_loss: bool = True) -> None:
        """`is_loss` is False where the group certainly has no part in the failure, as when a worker shuts down."""
        super().__init__(f"{worker}: {reason}")
        self.is_loss = is_loss


class Losses:
    """Counts the losses of one group, episode or turn."""

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._furthest = 0
        self.num_losses = 0

    @property
    def are_too_many(self) -> bool:
        """Whether it shall be given up."""
        return self.num_losses >= self._max_losses

    def count(self, error: WorkFailed, progress: int = 0) -> None:
        """Counts a failure, if it is one of the group.

        `progress` is how far the work had come, in any unit. A loss that comes further than all others is the first
        again: what kills from outside may hit it anywhere.
        """
        if not error.is_loss:
            return
        if progress > self._furthest:
            self._furthest, self.num_losses = progress, 0
        self.num_losses += 1

    async def pause(self) -> None:
        """Waits before the next try: longer with each loss, not at all without one."""
        if self.num_losses:
            await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** (self.num_losses - 1), MAX_PAUSE_S))
