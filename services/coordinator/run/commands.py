"""The commands to an active run that the service calls: pause, resume, stop, checkpoint."""

from services.coordinator.reporting.report import Report
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.store.run_record import RunRecord, RunState
from services.coordinator.workers.reward_pool import RewardPool
from services.coordinator.workers.weights.publisher import Publisher

_WAITING = "; waiting for workers and their models"


class RunCommands:
    """Carries out commands: sets the controls, reports the state, pauses and resumes the generators."""

    def __init__(self, controls: RunControls, record: RunRecord, report: Report) -> None:
        self._controls = controls
        self._record = record
        self._report = report
        self._publisher: Publisher | None = None
        self._rewards: RewardPool | None = None
        self._pauses_itself = False
        """Whether the run paused itself, and will resume automatically."""
        self.is_interrupted = False
        """Whether the coordinator ends, so that the run continues at the coordinator's next start."""
        self._working: tuple[RunState, str] = (RunState.STARTING, "resumed")
        """State and message of the run when it is neither paused nor stopping."""
        # If an earlier coordinator left the run paused, the record has the reason.
        self._pause_reason = (record.message if record.state is RunState.PAUSED else "paused").removesuffix(_WAITING)

    def attempt_begins(self, publisher: Publisher, rewards: RewardPool) -> None:
        """Reports that an attempt waits for its workers. From now on, commands act on its `publisher` and `rewards`."""
        self._publisher, self._rewards = publisher, rewards
        self._working = (RunState.STARTING, "resumed")
        if self._controls.is_paused:
            self.enter(RunState.PAUSED, f"{self._pause_reason}{_WAITING}", pauses_itself=self._pauses_itself)
        elif self._controls.stop is None:
            self.enter(RunState.STARTING, "waiting for workers and their models")

    def training_begins(self, policy_version: int) -> None:
        """Reports that the run begins to train, or why it is paused. Reports nothing if it is stopping."""
        self._working = (RunState.RUNNING, "resumed")
        if self._controls.stop is not None:
            return
        if self._controls.is_paused:
            self.enter(RunState.PAUSED, self._pause_reason, pauses_itself=self._pauses_itself)
        else:
            self.enter(RunState.RUNNING, f"training from step {policy_version}")

    def enter(self, state: RunState, message: str, *, pauses_itself: bool = False) -> None:
        """Records the state of the run, and reports the state."""
        self._record.enter(state, message, pauses_itself=pauses_itself)
        self._record.try_to_save()
        self._report.state()

    async def pause(self, reason: str = "paused") -> None:
        """Pauses the run: no prompt is issued, sampling stops at its current token, no step begins."""
        if self._pauses_itself:  # Then it stays paused.
            self._pauses_itself, self._pause_reason = False, reason
            self.enter(RunState.PAUSED, reason)
        await self._pause(reason)

    async def pause_itself(self, reason: str) -> None:
        """Pauses the run until `end_own_pause`, unless the run is already paused."""
        if not self._controls.is_paused:
            self._pauses_itself = True
            await self._pause(reason, pauses_itself=True)

    async def end_own_pause(self) -> None:
        """Resumes a run that paused itself, unless the run has been paused or resumed by a command since then."""
        if self._pauses_itself:
            await self._resume()

    async def resume(self) -> None:
        """Resumes a paused run, with the current code of its custom verifiers and environments.

        Raises `InvalidArgument` if that code cannot be used, or if an environment lost a tool, which prompts may show.
        The run then stays paused.
        """
        if self._controls.is_paused and self._rewards is not None:
            await self._rewards.reload_verifiers(keeps_tools=True)
        await self._resume()

    async def _pause(self, reason: str, *, pauses_itself: bool = False) -> None:
        if not self._controls.is_paused:
            self._controls.pause()
            self._pause_reason = reason
            self.enter(RunState.PAUSED, reason, pauses_itself=pauses_itself)
            await self._pause_generators()

    async def _resume(self) -> None:
        self._pauses_itself = False
        if self._controls.is_paused:
            # First: a publish that ends meanwhile must not pause the generators after this, and a run that ends
            # meanwhile must not be reported as running.
            self._controls.resume()
            if self._controls.stop is None:
                self.enter(*self._working)
            elif not self.is_interrupted:
                self.enter(RunState.STOPPING, f"stopping ({self._controls.stop})")
            await self._resume_generators()

    async def stop(self, mode: StopMode) -> None:
        """Requests the end of the run."""
        was_paused, self._pauses_itself = self._controls.is_paused, False
        self._controls.request_stop(mode)
        self.enter(RunState.STOPPING, f"stopping ({self._controls.stop})")
        if was_paused and mode is StopMode.DRAIN:
            await self._resume_generators()

    def interrupt(self) -> None:
        """Requests the end of the attempt at the next step boundary. The coordinator's next start continues the run
        from there, in the state that was reported last."""
        self.is_interrupted = self._controls.stop is None
        self._controls.request_stop(StopMode.NOW)

    async def save_checkpoint(self) -> str:
        """Waits until a checkpoint is written at the next step boundary, and returns its name."""
        return await self._controls.request_checkpoint()

    async def stay_paused(self) -> None:
        """Pauses the generators again after a publish if the run is paused, since a publish lets them sample."""
        if self._controls.stands_still:
            await self._pause_generators()

    async def follow_pause(self) -> None:
        """Pauses the generators if the run is paused; else resumes them, since some may come from a paused attempt."""
        await (self._pause_generators() if self._controls.stands_still else self._resume_generators())

    async def begin_evaluation(self) -> None:
        """Lets the generators sample answers if the run is paused. They then sample nothing for training."""
        if self._controls.stands_still:
            self._controls.begin_evaluation_in_pause()
            await self._resume_generators()

    async def end_evaluation(self) -> None:
        """Pauses the generators again if the run is still paused."""
        self._controls.end_evaluation_in_pause()
        await self.stay_paused()

    async def _pause_generators(self) -> None:
        if self._publisher is not None:
            await self._publisher.pause()

    async def _resume_generators(self) -> None:
        if self._publisher is not None:
            await self._publisher.resume()
