"""The engine of the real generator service: samples digits at its own pace, and receives weights in memory."""

import asyncio
import random
from collections.abc import Callable, Sequence

import numpy as np

from services.generator.engine import LoadReport, Sample
from shoal.arrays import Float32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, Unavailable
from shoal.rollout import FinishReason, SamplingParams, VersionSpan, WeightVersion
from shoal.token_run import TokenRun, joined
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from tests.simulation.virtual_time import Process
from tests.simulation.workers.plane import Faults, Plane
from tests.simulation.workers.weight_group import WeightGroup, Weights
from tests.support.scripted_workers import ENCODER

MANIFEST = Manifest((TensorSpec("w", "float32", (2,)),))
_NUM_PARTS = 3
"""Parts of a completion, between which weights may change."""


class SimulatedEngine:
    """Samples "1..." or "0...", as the seed says."""

    loads_while_sampling = False
    num_weight_ranks = 1
    max_model_len = 2048
    vocab_size = 260
    dtype = "float32"
    kv_cache_use: float | None = None

    def __init__(self, plane: Plane, process: Process, rng: random.Random) -> None:
        self._plane = plane
        self._faults: Faults = plane.faults
        self._process = process
        self._rng = rng
        self._pace_s = rng.choice((0.05, 0.5, 1.5))
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._version: WeightVersion | None = None
        self._loaded: Weights | None = None
        self._group: WeightGroup | None = None
        self._rank = 0
        self._num_drops = 0

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        report_every: int = 0,
    ) -> Sample:
        num_drops = self._num_drops
        token_ids = ENCODER.encode(str(random.Random(seed).randrange(2)) + "x" * (seed % 5)).ids
        ends = [len(token_ids) * part // _NUM_PARTS for part in range(1, _NUM_PARTS + 1)]
        runs: list[TokenRun] = []
        start = 0
        if self._rng.random() < self._faults.endless_share:
            await asyncio.sleep(1e6)
        for end in ends:
            await asyncio.sleep(self._rng.random() * self._pace_s)
            await self._unpaused.wait()
            if num_drops != self._num_drops:
                raise Aborted("the weights of another attempt came", reason=ErrorReason.RESTORED)
            assert self._version is not None, "it sampled without weights"
            spans = (VersionSpan(self._version, 0, end - start),) if end > start else ()
            part = np.array(token_ids[start:end], np.int32)
            runs.append(TokenRun(part, np.full(end - start, -1.0, np.float32), spans))
            if end < len(token_ids):
                on_tokens(runs[-1])
            start = end
        return Sample(joined(runs), FinishReason.STOP)

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        await self._unpaused.wait()
        return np.full(len(token_ids) - 1, -1.0, dtype=np.float32)

    async def abort_all(self) -> None:
        self._num_drops += 1

    async def pause(self, *, clear_cache: bool) -> None:
        self._unpaused.clear()

    async def resume(self) -> None:
        self._unpaused.set()

    async def sleep(self) -> None:
        self._unpaused.clear()

    async def wake(self) -> None:
        self._unpaused.set()

    async def check_manifest(self, manifest: Manifest) -> None:
        assert manifest == MANIFEST

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        group = self._plane.groups.get(rendezvous.epoch)
        if group is None:
            raise Unavailable("nothing listens there", reason=ErrorReason.WEIGHT_STORE_UNREACHABLE)
        self._group, self._rank = group, rank_offset
        if self._rng.random() < self._faults.stalled_join_share:
            await asyncio.sleep(group.timeout_s)
        await group.join(rank_offset, self._process)

    async def abort_group(self, reason: str) -> None:
        if self._group is not None:
            self._group.abort(reason)

    async def leave_group(self) -> None:
        self._group = None

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        assert self._group is not None
        if self._rng.random() < self._faults.slow_ready_share:
            await asyncio.sleep(self._rng.random() * 20)
        on_ready()
        weights = await self._group.receive(self._rank)
        digest = weights.digest
        if self._rng.random() < self._faults.flipped_share:
            digest = "f" * 32
        await asyncio.sleep(self._rng.random() * 0.3)
        if weights.version != version:
            self._plane.report(f"{self._process.name} was told that it loads {version}, and got {weights.version}")
        if self._version is not None and _order(version) < _order(self._version):
            self._plane.report(f"{self._process.name} loads {version} after {self._version}")
        self._version, self._loaded = version, weights
        return LoadReport((TensorHash("w", digest),), 0.1, 0.1)

    async def died(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


def _order(version: WeightVersion) -> tuple[int, int]:
    return version.attempt, version.policy_version
