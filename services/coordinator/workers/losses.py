"""Losses of one group: how often its sampling or scoring failed, and the growing pauses before it is tried again.

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
    """Counts the losses of one group."""

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self.num_losses = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the group shall be given up."""
        return self.num_losses >= self._max_losses

    def count(self, error: WorkFailed) -> None:
        """Counts a failure, if it is one of the group."""
        self.num_losses += error.is_loss

    async def pause(self) -> None:
        """Waits before the next try: longer with each loss, not at all without one."""
        if self.num_losses:
            await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** (self.num_losses - 1), MAX_PAUSE_S))
