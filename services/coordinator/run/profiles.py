"""Recordings of train steps by the learner's profiler. A recording ends with the attempt in which it began."""

import asyncio

from services.coordinator.run.run_parts import RunParts
from services.coordinator.store.run_record import RunState
from services.coordinator.workers.learner_client import LearnerClient, Profile
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, ShoalError, Unavailable
from shoal.quantities import counted, format_range


class Profiles:
    """Records train steps of an attempt on demand, and reports what becomes of each recording."""

    def __init__(self, run: RunParts, learner: LearnerClient) -> None:
        self._run = run
        self._learner = learner
        self._recordings: set[asyncio.Task[Profile]] = set()
        self._has_ended = False

    async def record(self, num_steps: int, within_s: float) -> Profile:
        """Records the next train steps, and waits at most `within_s` for the files. A cancellation drops the recording.

        Raises `FailedPrecondition` for a run that is not training, `Aborted` when the learner is lost or the attempt
        ends before the last step, and the learner's errors.
        """
        record = self._run.record
        if record.state is not RunState.RUNNING:
            raise FailedPrecondition(
                f"run {record.run_id} is {record.state}, not RUNNING: {record.message}; no train step can be recorded",
                reason=ErrorReason.NOT_TRAINING,
            )
        recording = asyncio.create_task(self._learner.profile(num_steps, within_s))
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        try:
            profile = await recording
        except asyncio.CancelledError:
            if not self._has_ended:
                raise
            raise self._dropped("the run ended or went back to a checkpoint") from None
        except (Unavailable, FailedPrecondition) as error:
            if not _ends_the_recording(error):
                raise
            raise self._dropped(error.message) from error
        first, last = profile.first_step, profile.last_step
        ranks = counted(len(profile.paths), "rank")
        self._run.events.add(
            "profile",
            f"{ranks} recorded {format_range('train step', first, last)}: {profile.paths[0]}",
            paths=list(profile.paths),
            first_step=first,
            last_step=last,
            is_partial=profile.is_partial,
        )
        return profile

    def close(self) -> None:
        """Drops the recordings that are under way."""
        self._has_ended = True
        for recording in self._recordings:
            recording.cancel()

    def _dropped(self, why: str) -> Aborted:
        message = f"the recording of train steps was dropped, and no file is written: {why}"
        self._run.events.add("profile_dropped", message, reason=why)
        return Aborted(message, reason=ErrorReason.PROFILE_DROPPED)


def _ends_the_recording(error: ShoalError) -> bool:
    """Whether an error says that the learner, or the connection to it, is gone, rather than that it refuses."""
    return isinstance(error, Unavailable) or error.reason == ErrorReason.LEARNER_LOST
