"""The departure of a learner that was told to end. The departure waits until no train step would be lost."""

import asyncio
import os
import signal
import time

from services.learner.ranks.process_group import Command
from services.learner.torch_thread import TorchThread
from shoal.errors import ShoalError
from shoal.v1 import worker_pb2
from shoal.worker.lifecycle import Lifecycle

_POLL_S = 0.1
_WATCH_S = 1.0


class Departure:
    """Tracks whether a train step is in no checkpoint yet, and waits for a checkpoint that contains the step."""

    def __init__(self, lifecycle: Lifecycle, torch: TorchThread, *, grace_s: float) -> None:
        """`grace_s` is the longest wait in seconds."""
        self._lifecycle = lifecycle
        self._torch = torch
        self._grace_s = grace_s
        self.num_steps = 0
        """Train steps that have begun. Set by the torch thread."""
        self._num_saved = 0

    @property
    def has_unsaved_step(self) -> bool:
        """Whether a train step began after the last checkpoint on disk was written, and after the last restore."""
        return self.num_steps > self._num_saved

    def saved(self, num_steps: int) -> None:
        """Notes that the first `num_steps` steps no longer need a checkpoint. Any thread may call it."""
        self._num_saved = max(self._num_saved, num_steps)

    async def drain(self) -> None:
        """Waits, after the process was told to end, until no train step would be lost.

        Meanwhile the learner shows LEAVING and still serves. At its next boundary the run asks for a checkpoint and
        then releases the learner. After the grace period the learner fails, and the error states that a step is lost.
        """
        if not self._lifecycle.leave():
            return
        deadline = time.monotonic() + self._grace_s
        while self._lifecycle.state == worker_pb2.WORKER_STATE_LEAVING and self.has_unsaved_step:
            if time.monotonic() > deadline:
                what = "did not end" if self._torch.num_open else "was not saved in a checkpoint"
                self._lifecycle.fail(
                    f"the learner was told to end, but its last train step {what} within --grace-s "
                    f"({self._grace_s:.0f} s), so the step is lost: start the learner with a longer --grace-s"
                )
            await asyncio.sleep(_POLL_S)

    async def watch_ranks(self) -> None:
        """Lets the learner leave and start again when another of its ranks is told to end, for example by its node.

        A signal to this process still ends it as usual.
        """
        try:
            joined = self._torch.submit(Command.IDLE, b"", lambda commands: commands.process_group)
            process_group = await asyncio.wrap_future(joined)
        except ShoalError:
            return  # The ranks did not all join, which ends the process.
        rank: str | None = None
        while rank is None:
            await asyncio.sleep(_WATCH_S)
            rank = await asyncio.to_thread(process_group.leaving_rank)
        await self.drain()
        if self._lifecycle.can_restart:
            self._lifecycle.restart(f"rank {rank} of the learner was told to end")
        else:
            os.kill(os.getpid(), signal.SIGTERM)
