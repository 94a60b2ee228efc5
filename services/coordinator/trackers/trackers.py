"""The trackers that a run's configuration asks for, as one."""

from collections.abc import Callable, Mapping, Sequence

from services.coordinator.record import RunRecord
from services.coordinator.trackers.tensorboard import TensorBoardTracker
from services.coordinator.trackers.tracker import TrackerThread
from services.coordinator.trackers.wandb import WandbTracker
from shoal.config import RunConfig


class Trackers:
    """Hands every figure to each tracker, which takes it on its own thread: nothing here waits, but for `close`."""

    def __init__(self, threads: Sequence[TrackerThread] = ()) -> None:
        self._threads = threads

    @classmethod
    def for_run(cls, config: RunConfig, record: RunRecord, on_failure: Callable[[str, str], None]) -> "Trackers":
        """Those of `[tracking]`. `on_failure` gets the name of one that failed, and why, on another thread."""
        tracking, threads = config.tracking, []
        if tracking.tensorboard:
            folder = record.folder / "tensorboard"
            threads.append(TrackerThread("TensorBoard", lambda: TensorBoardTracker(folder), on_failure))
        if tracking.wandb != "disabled":
            threads.append(TrackerThread("Weights & Biases", lambda: WandbTracker(config, record), on_failure))
        return cls(threads)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Takes the figures of a train step, or those of an evaluation of its policy."""
        for thread in self._threads:
            thread.log(step, figures)

    def restored(self, step: int) -> None:
        """The run goes on behind a step: what was logged of later ones is given up."""
        for thread in self._threads:
            thread.restored(step)

    def close(self, *, failed: bool) -> None:
        """Waits until everything is written; blocks, so it is not for the event loop."""
        for thread in self._threads:
            thread.close(failed=failed)
