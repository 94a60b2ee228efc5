"""The generator's part in a publish: takes its place in the broadcast group, loads what comes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from services.generator.engine import Engine, LoadReport
from shoal.errors import Aborted, FailedPrecondition, ShoalError, Unavailable
from shoal.rollout import Float32Array, Int32Array, WeightVersion
from shoal.telemetry import metrics, names
from shoal.weights.manifest import Manifest
from shoal.weights.rendezvous import Rendezvous

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """A version that was loaded."""

    report: LoadReport
    canary_logprobs: Float32Array | None
    """[P - 1] under the new weights, if there was a canary."""
    pause_s: float
    """How long sampling was paused."""


class WeightLoader:
    """What the engine's weights are, which group brings the next ones, and whether sampling is paused.

    Pauses of two kinds meet here: the one around a load, and the one that somebody asked for with `hold`. After a
    load that failed the engine stays paused: its weights are a mixture.
    """

    def __init__(self, engine: Engine, *, keep_stale_kv: bool, on_new_attempt: Callable[[WeightVersion], None]) -> None:
        """`on_new_attempt` is called before weights of a higher attempt are loaded: the run was restored."""
        self._engine = engine
        self._keep_stale_kv = keep_stale_kv
        self._on_new_attempt = on_new_attempt
        self._rendezvous: Rendezvous | None = None
        self._manifest_digest = ""
        self._newest_epoch = 0
        self._has_joined = False
        self._joining = asyncio.Lock()
        self._load: asyncio.Task[Loaded] | None = None
        # Of a load, and of scores during a hold: each has the engine paused or running as it needs it. Whoever has the
        # lock leaves the engine as `is_held` says in the end, so that others need not wait to change that.
        self._steering = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._last_version: WeightVersion | None = None
        self.is_stale = True
        """Whether the weights may not be served: none were loaded yet, or a load failed."""
        self.stale_because = "no weights were published to it yet"
        self.is_held = False
        """Whether somebody asked for a pause."""
        self.is_mixture = False
        """Whether the last load failed half-way."""
        self.is_asleep = False
        """Whether the engine has given its memory back."""

    @property
    def version(self) -> WeightVersion | None:
        """The version that the engine holds; None before the first load and after one that failed."""
        return None if self.is_stale else self._last_version

    @property
    def epoch(self) -> int | None:
        """The epoch of the group that it is in."""
        return self._rendezvous.epoch if self._rendezvous is not None and self._has_joined else None

    async def join(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        """Takes its places in a group, giving up an earlier one and whatever waits in it.

        Raises `InvalidArgument`, `FailedPrecondition` for an old epoch, `DeadlineExceeded`, and `Aborted` when the
        group is given up.
        """
        await self._engine.check_manifest(manifest)
        if rendezvous.epoch < self._newest_epoch:
            raise FailedPrecondition(
                f"epoch {rendezvous.epoch} is over: this generator has been asked to join epoch {self._newest_epoch}",
                reason="OLD_EPOCH",
            )
        is_newer = rendezvous.epoch > self._newest_epoch
        self._newest_epoch = rendezvous.epoch
        if is_newer:
            # Whoever waits in the earlier group, in a join or in a load, has to be through first.
            await self._engine.abort_group(f"epoch {rendezvous.epoch} begins")
        async with self._joining:
            if rendezvous.epoch < self._newest_epoch:
                raise FailedPrecondition(f"epoch {self._newest_epoch} began meanwhile", reason="OLD_EPOCH")
            if self._load is not None:
                await asyncio.wait((self._load,))
            if self._rendezvous == rendezvous and self._has_joined and self._manifest_digest == manifest.digest:
                return
            self._rendezvous, self._has_joined, self._manifest_digest = rendezvous, False, manifest.digest
            try:
                await self._engine.join_group(rendezvous, rank_offset, manifest)
            except asyncio.CancelledError:
                await self._engine.abort_group("a generator's join was cancelled")
                raise
            except Unavailable as error:
                if error.reason == "ENGINE_DEAD":
                    raise
                # Not for the same call to be repeated: the group of this epoch will not come about.
                raise Aborted(error.message, reason=error.reason, metadata=error.metadata) from error
            self._has_joined = True

    async def leave(self) -> None:
        """Leaves the group, giving up what waits in it."""
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
    ) -> AsyncIterator[Loaded | None]:
        """Loads a version: yields None when every rank is receiving, then what came of it.

        Raises `FailedPrecondition`, `Unavailable`, `DeadlineExceeded`, `DataLoss`. When the caller goes away, the
        group is given up.
        """
        if self.epoch != epoch:
            raise FailedPrecondition(
                f"the generator is not in the weight group of epoch {epoch} (it is in: {self.epoch})",
                reason="NOT_A_MEMBER",
            )
        if self._load is not None:
            raise FailedPrecondition("a load is under way", reason="LOAD_UNDER_WAY")
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
                # The caller went away. The load itself must not be cut: it has to leave the engine in a known state.
                self._giving_up = asyncio.create_task(self._engine.abort_group("the caller of a load went away"))

    def _load_ended(self, task: "asyncio.Task[Loaded]") -> None:
        self._load = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("weights not loaded", extra={"error": str(error)})

    async def _run(
        self, version: WeightVersion, canary_token_ids: Int32Array | None, on_ready: Callable[[], None]
    ) -> Loaded:
        async with self._steering:
            started = time.monotonic()
            if self._last_version is not None and version.attempt > self._last_version.attempt:
                self._on_new_attempt(version)
                await self._engine.abort_all()
            await self._wake_up()
            await self._engine.pause(clear_cache=not self._keep_stale_kv)
            try:
                report = await self._engine.load_weights(version, on_ready)
            except BaseException as error:
                self.is_stale = self.is_mixture = True
                self.stale_because = f"loading version {version} failed: {error}"
                raise
            self.is_mixture = False
            self._last_version = version
            if not self.is_held:
                await self._settle()
            self.is_stale = False
            pause_s = time.monotonic() - started
            metrics.histogram(names.WEIGHTS_PAUSE).record(pause_s)
            metrics.histogram(names.WEIGHTS_RECEIVE).record(report.receive_s)
            metrics.histogram(names.WEIGHTS_LOAD).record(report.load_s)
            canary = None if canary_token_ids is None else await self._score_steering(canary_token_ids)
        log.info(
            "weights loaded",
            extra={"version": str(version), "pause_s": pause_s, "receive_s": report.receive_s, "load_s": report.load_s},
        )
        return Loaded(report, canary, pause_s)

    async def score(self, token_ids: Int32Array) -> Float32Array:
        """[P - 1] log-probability of each token but the first. While held, sampling goes on for a moment."""
        if self.is_held or self.is_asleep or self._steering.locked():
            async with self._steering:
                self._require_whole()
                return await self._score_steering(token_ids)
        self._require_whole()
        return await self._engine.score(token_ids.tolist())

    async def _score_steering(self, token_ids: Int32Array) -> Float32Array:
        await self._wake_up()
        if self.is_held:
            await self._engine.resume()
        try:
            return await self._engine.score(token_ids.tolist())
        finally:
            if self.is_held:
                await self._settle()

    async def _settle(self) -> None:
        """Has the engine paused or running as `is_held` says, also if that changes meanwhile."""
        was_held = None
        while was_held != self.is_held:
            was_held = self.is_held
            await (self._engine.pause(clear_cache=False) if was_held else self._engine.resume())

    def _require_whole(self) -> None:
        if self.is_mixture:
            raise FailedPrecondition(f"the weights are incomplete: {self.stale_because}", reason="STALE")

    async def hold(self) -> None:
        """Pauses sampling until `release`. During a load it is paused, and stays so."""
        self.is_held = True
        if not self._steering.locked():
            await self._engine.pause(clear_cache=False)

    async def release(self) -> None:
        """Ends `hold`. Raises `FailedPrecondition` when there are no weights to sample from."""
        if self.is_stale:
            raise FailedPrecondition(f"the generator is STALE: {self.stale_because}", reason="STALE")
        self.is_held = False
        if not self._steering.locked():
            await self._wake_up()
            await self._engine.resume()

    async def sleep(self) -> None:
        """Stops sampling and gives the memory back, until `wake` or whatever needs the engine.

        Raises `FailedPrecondition` while weights are being loaded, and as `Engine.sleep`.
        """
        if self._load is not None:
            raise FailedPrecondition("a load is under way: the engine cannot sleep", reason="LOAD_UNDER_WAY")
        async with self._steering:
            if not self.is_asleep:
                await self._engine.sleep()
                self.is_asleep = True

    async def wake(self) -> None:
        """Ends `sleep`. Sampling goes on, unless it is held or the weights are a mixture."""
        if await self._wake_up() and not self._steering.locked() and (self.is_held or self.is_mixture):
            await self._engine.pause(clear_cache=False)

    async def _wake_up(self) -> bool:
        """Whether the engine was asleep. It samples afterwards."""
        if not self.is_asleep:
            return False
        self.is_asleep = False
        await self._engine.wake()
        return True

    async def reset(self, because: str) -> None:
        """Forgets group and version: another run begins."""
        with suppress(ShoalError):
            await self.leave()
        self._newest_epoch = 0
        self._last_version = None
        self.is_stale, self.stale_because = True, because
        self.is_held = False
        await self.wake()
        if not self.is_mixture:
            await self._engine.resume()
