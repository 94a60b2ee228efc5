"""Turns of generator and learner on a GPU that they share (`launch.single_gpu`): they load and train in turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from shoal.concurrency import Signal
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded
from shoal.v1 import worker_pb2


class GpuTurns:
    """Makes a generator load after the learner, and never while the learner trains.

    vLLM refuses to start unless its share of the memory is free, and a learner uses more memory during a train step
    than between steps. A generator that restarts during the run waits, too. If each worker has its own GPU, none waits.
    """

    def __init__(self, config: RunConfig, *, learner_is_loaded: Callable[[], bool], changed: Signal) -> None:
        """`changed` notifies when the result of `learner_is_loaded` may have changed."""
        self._is_shared = config.launch.single_gpu
        self._load_timeout_s = config.coordinator.worker_timeout_s
        self._learner_is_loaded = learner_is_loaded
        self._changed = changed
        self._is_waiting = False
        self._began = 0.0
        self.learner_lock = asyncio.Lock()
        """Taken by a train step, and by all that must not happen in the middle of one."""

    @asynccontextmanager
    async def to_load(self, kind: int) -> AsyncIterator[None]:
        """Waits until a worker of this kind may load, and keeps the turn in the context.

        Raises `DeadlineExceeded` if the turn takes longer than `coordinator.worker_timeout_s`.
        """
        if not self._is_shared or kind != worker_pb2.WORKER_KIND_GENERATOR:
            yield
            return
        while not self._learner_is_loaded():
            await self._changed.wait(1.0)
        self._is_waiting = True
        async with self.learner_lock:
            self._is_waiting, self._began = False, asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._load_timeout_s):
                    yield
            except TimeoutError:
                raise DeadlineExceeded(
                    f"it did not load within coordinator.worker_timeout_s ({self._load_timeout_s:.0f} s), while the "
                    "learner on the same GPU waited; raise the limit if the model needs longer to load",
                    reason=ErrorReason.WORKER_FAILED,
                ) from None

    @property
    def began(self) -> float:
        """The time on the event loop's clock when the last generator began to load; now, if one waits for a train step.

        Deadlines for a generator count from this time, because the train step may take longer than they allow.
        """
        return asyncio.get_running_loop().time() if self._is_waiting else self._began
