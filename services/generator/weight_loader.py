"""Weights of a generator: membership in the broadcast group, loads, pauses, sleep."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from services.generator.engine import Engine, LoadReport
from shoal.arrays import Float32Array, Int32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, ShoalError, Unavailable
from shoal.rollout import WeightVersion
from shoal.telemetry import metrics, names
from shoal.weights.manifest import Manifest
from shoal.weights.rendezvous import Rendezvous

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedWeights:
    """A loaded version of the weights."""

    report: LoadReport
    canary_logprobs: Float32Array | None
    """The canary's log-probabilities under the new weights, [P - 1]; None without a canary."""
    pause_s: float
    """Seconds that sampling was paused."""


class WeightLoader:
    """The version of an engine's weights, the group that broadcasts the next version, and the pauses of sampling.

    There are two kinds of pauses: around each load, and between `pause` and `resume`. After a failed load the engine
    stays paused: its weights are a mixture of two versions. An engine that loads while it samples has only the second
    kind.
    """

    def __init__(self, engine: Engine, *, keep_stale_kv: bool, on_new_attempt: Callable[[WeightVersion], None]) -> None:
        """`on_new_attempt` is called before weights of a higher attempt are loaded, after a restore of the run."""
        self._engine = engine
        self._keep_stale_kv = keep_stale_kv
        self._on_new_attempt = on_new_attempt
        self._rendezvous: Rendezvous | None = None
        self._manifest_digest = ""
        self._newest_epoch = 0
        self._has_joined = False
        self._joining = asyncio.Lock()
        self._load: asyncio.Task[LoadedWeights] | None = None
        # Loads hold the lock, and scores during a pause: both pause and resume the engine. Before they release it they
        # apply `is_paused`, so `pause` and `resume` may set that without waiting for the lock.
        self._engine_lock = asyncio.Lock()
        self._aborting: asyncio.Task[None] | None = None
        self._last_version: WeightVersion | None = None
        self.is_stale = True
        """Whether the weights must not be served, because no weights were loaded yet or a load failed."""
        self.stale_reason = "no weights were published to the generator yet"
        self.is_paused = False
        """Whether `pause` was called, and `resume` was not called afterwards."""
        self.is_incomplete = False
        """Whether the last load failed before its end, so that the weights are a mixture of two versions."""
        self.is_asleep = False
        """Whether the engine has freed its memory."""

    @property
    def version(self) -> WeightVersion | None:
        """The loaded version; None before the first load and after a failed load."""
        return None if self.is_stale else self._last_version

    @property
    def epoch(self) -> int | None:
        """The epoch of the current group; None without a group."""
        return self._rendezvous.epoch if self._rendezvous is not None and self._has_joined else None

    async def join(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        """Joins a group. Aborts an earlier group, and every call that waits in the earlier group.

        Raises `InvalidArgument`, `FailedPrecondition` for an old epoch, `DeadlineExceeded`, and `Aborted`.
        """
        await self._engine.check_manifest(manifest)
        if rendezvous.epoch < self._newest_epoch:
            raise FailedPrecondition(
                f"epoch {rendezvous.epoch} is over: this generator was asked to join epoch {self._newest_epoch}",
                reason=ErrorReason.OLD_EPOCH,
            )
        is_newer = rendezvous.epoch > self._newest_epoch
        self._newest_epoch = rendezvous.epoch
        if is_newer:
            # A join or a load that waits in the earlier group must end first.
            await self._engine.abort_group(f"epoch {rendezvous.epoch} begins")
        async with self._joining:
            if rendezvous.epoch < self._newest_epoch:
                message = f"epoch {rendezvous.epoch} is over: epoch {self._newest_epoch} began before the join"
                raise FailedPrecondition(message, reason=ErrorReason.OLD_EPOCH)
            if self._load is not None:
                await asyncio.wait((self._load,))
            if self._rendezvous == rendezvous and self._has_joined and self._manifest_digest == manifest.digest:
                return
            self._rendezvous, self._has_joined, self._manifest_digest = rendezvous, False, manifest.digest
            try:
                await self._engine.join_group(rendezvous, rank_offset, manifest)
            except asyncio.CancelledError:
                await self._engine.abort_group("a generator's join was canceled")
                raise
            except Unavailable as error:
                if error.reason == ErrorReason.ENGINE_DEAD:
                    raise
                # The caller must not retry: the group of this epoch will never be complete.
                raise Aborted(error.message, reason=error.reason, metadata=error.metadata) from error
            self._has_joined = True

    async def leave(self) -> None:
        """Leaves the group, and aborts every call that waits in the group."""
        if self._rendezvous is None:
            return
        await self._engine.abort_group("a generator left")
        async with self._joining:
            if self._load is not None:
                await asyncio.wait((self._load,))
            self._rendezvous, self._has_joined = None, False
            await self._engine.leave_group()

    async def load(
        self, epoch: int, version: WeightVersion, canary_token_ids: Int32Array | None
    ) -> AsyncIterator[LoadedWeights | None]:
        """Loads a version. Yields None when every rank receives, then the result.

        Raises `FailedPrecondition`, `Unavailable`, `DeadlineExceeded`, `DataLoss`. If the caller disconnects, the group
        is aborted.
        """
        if self.epoch != epoch:
            raise FailedPrecondition(
                f"the generator is not in the weight group of epoch {epoch}"
                + ("" if self.epoch is None else f", but in that of epoch {self.epoch}"),
                reason=ErrorReason.NOT_A_MEMBER,
            )
        if self._load is not None:
            raise FailedPrecondition("another load of weights is in progress", reason=ErrorReason.LOAD_UNDER_WAY)
        ready = asyncio.Event()
        task = self._load = asyncio.create_task(self._run(version, canary_token_ids, ready.set))
        task.add_done_callback(self._load_ended)
        receiving = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait((task, receiving), return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set():
                yield None
            await asyncio.wait((task,))
            yield task.result()
        finally:
            receiving.cancel()
            if not task.done():
                # The caller disconnected. Do not cancel the load: it has to leave the engine in a known state.
                self._aborting = asyncio.create_task(self._engine.abort_group("the caller of a load disconnected"))

    def _load_ended(self, task: "asyncio.Task[LoadedWeights]") -> None:
        self._load = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("weights not loaded", extra={"error": str(error)})

    async def _run(
        self, version: WeightVersion, canary_token_ids: Int32Array | None, on_ready: Callable[[], None]
    ) -> LoadedWeights:
        async with self._engine_lock:
            started = time.monotonic()
            if self._last_version is not None and version.attempt > self._last_version.attempt:
                self._on_new_attempt(version)
                await self._engine.abort_all()
            await self._wake_up()
            pauses = not self._engine.loads_while_sampling
            if pauses:
                await self._engine.pause(clear_cache=not self._keep_stale_kv)
            try:
                report = await self._engine.load_weights(version, on_ready)
            except BaseException as error:
                self.is_stale, self.is_incomplete = True, pauses
                self.stale_reason = f"loading version {version} failed: {error}"
                raise
            finally:
                if not pauses:
                    # During a load, `pause` and `resume` leave this to the load.
                    await self._apply_pause()
            self.is_incomplete = False
            self._last_version = version
            if pauses and not self.is_paused:
                await self._apply_pause()
            self.is_stale = False
            pause_s = time.monotonic() - started if pauses else report.load_s
            metrics.histogram(names.WEIGHTS_PAUSE).record(pause_s)
            metrics.histogram(names.WEIGHTS_RECEIVE).record(report.receive_s)
            metrics.histogram(names.WEIGHTS_LOAD).record(report.load_s)
            canary = None if canary_token_ids is None else await self._score_locked(canary_token_ids)
        log.info(
            "weights loaded",
            extra={"version": str(version), "pause_s": pause_s, "receive_s": report.receive_s, "load_s": report.load_s},
        )
        return LoadedWeights(report, canary, pause_s)

    async def while_paused(self, work: Callable[[], Awaitable[None]]) -> None:
        """Awaits a call while sampling is paused and the cache of earlier prompts is empty.

        Raises `FailedPrecondition` when there are no weights for sampling.
        """
        async with self._engine_lock:
            self._require_complete()
            await self._wake_up()
            await self._engine.pause(clear_cache=True)
            try:
                await work()
            finally:
                await self._apply_pause()

    async def score(self, token_ids: Int32Array) -> Float32Array:
        """Returns the log-probabilities of all tokens but the first, [P - 1]. Lifts a pause meanwhile."""
        if self.is_paused or self.is_asleep or self._engine_lock.locked():
            async with self._engine_lock:
                self._require_complete()
                return await self._score_locked(token_ids)
        self._require_complete()
        return await self._engine.score(token_ids.tolist())

    async def _score_locked(self, token_ids: Int32Array) -> Float32Array:
        await self._wake_up()
        if self.is_paused:
            await self._engine.resume()
        try:
            return await self._engine.score(token_ids.tolist())
        finally:
            if self.is_paused:
                await self._apply_pause()

    async def _apply_pause(self) -> None:
        """Pauses or resumes the engine according to `is_paused`, even if `is_paused` changes meanwhile."""
        was_paused = None
        while was_paused != self.is_paused:
            was_paused = self.is_paused
            await (self._engine.pause(clear_cache=False) if was_paused else self._engine.resume())

    def _require_complete(self) -> None:
        if self.is_incomplete:
            raise FailedPrecondition(f"the weights are incomplete: {self.stale_reason}", reason=ErrorReason.STALE)

    async def pause(self) -> None:
        """Pauses sampling until `resume`. The engine also stays paused after a load in progress."""
        self.is_paused = True
        if not self._engine_lock.locked():
            await self._engine.pause(clear_cache=False)

    async def resume(self) -> None:
        """Ends `pause`. Raises `FailedPrecondition` when there are no weights for sampling."""
        if self.is_stale:
            raise FailedPrecondition(f"the generator is STALE: {self.stale_reason}", reason=ErrorReason.STALE)
        self.is_paused = False
        if not self._engine_lock.locked():
            await self._wake_up()
            await self._engine.resume()

    async def sleep(self) -> None:
        """Pauses sampling and frees the memory, until `wake` or another call that needs the engine.

        Raises `FailedPrecondition` during a load, and the errors of `Engine.sleep`.
        """
        if self._load is not None:
            raise FailedPrecondition("an engine that loads weights cannot sleep", reason=ErrorReason.LOAD_UNDER_WAY)
        async with self._engine_lock:
            if not self.is_asleep:
                await self._engine.sleep()
                self.is_asleep = True

    async def wake(self) -> None:
        """Ends `sleep`. Sampling continues, unless sampling is paused or the weights are incomplete."""
        if await self._wake_up() and not self._engine_lock.locked() and (self.is_paused or self.is_incomplete):
            await self._engine.pause(clear_cache=False)

    async def _wake_up(self) -> bool:
        """Wakes the engine, which then samples. Returns whether the engine was asleep."""
        if not self.is_asleep:
            return False
        self.is_asleep = False
        await self._engine.wake()
        return True

    async def reset(self, reason: str) -> None:
        """Leaves the group and forgets the version, for another run."""
        with suppress(ShoalError):
            await self.leave()
        self._newest_epoch = 0
        self._last_version = None
        self.is_stale, self.stale_reason = True, reason
        self.is_paused = False
        await self.wake()
        if not self.is_incomplete:
            await self._engine.resume()
