"""Recordings of train steps that callers ask the learner for, one at a time."""

import asyncio

from services.learner.ranks.process_group import Command
from services.learner.served_run import ServedRun
from services.learner.step_profiler import Profile
from services.learner.torch_thread import TorchThread
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.v1 import learner_pb2
from shoal.wire import invalid

MAX_STEPS = 10
"""The most steps of a recording, which the memory of each rank has to hold."""


class Profiles:
    """Records train steps. All methods belong to one event loop."""

    def __init__(self, served: ServedRun, torch: TorchThread) -> None:
        self._served = served
        self._torch = torch
        self._is_recording = False

    async def record(self, request: learner_pb2.ProfileRequest) -> Profile:
        """Records the next train steps on all ranks, and waits for the files. A cancellation drops the recording."""
        self._served.require_ready()
        if not 1 <= request.num_steps <= MAX_STEPS:
            raise invalid("num_steps", f"must be 1 to {MAX_STEPS} (given: {request.num_steps})")
        if self._is_recording:
            raise FailedPrecondition(
                "another recording of train steps is under way; wait for its end",
                reason=ErrorReason.PROFILE_UNDER_WAY,
            )
        self._is_recording = True
        try:
            recording = await self._served.run(
                Command.PROFILE, request, None, lambda commands: commands.begin_profile(request)
            )
            return await asyncio.wrap_future(recording)
        except asyncio.CancelledError:
            self._torch.submit(Command.DROP_PROFILE, b"", lambda commands: commands.profiler.drop())
            raise
        finally:
            self._is_recording = False
