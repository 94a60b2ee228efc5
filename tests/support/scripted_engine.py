"""An engine of the generator that follows a script, for contract tests."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from services.generator.engine import LoadReport, Sample
from shoal.arrays import Float32Array
from shoal.errors import ShoalError, Unavailable
from shoal.rollout import FinishReason, SamplingParams, Support, VersionSpan, WeightVersion
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.wire import invalid

MANIFEST = Manifest((TensorSpec("w", "float32", (2,)),))
"""The manifest of its model."""


class ScriptedEngine:
    """Samples tokens that follow from the seed; its attributes script everything else."""

    loads_while_sampling = False
    num_weight_ranks = 2
    max_model_len = 16
    vocab_size = 50

    def __init__(self) -> None:
        self.version = WeightVersion(0, 0)
        self.is_asleep = False
        self.unpaused = asyncio.Event()
        self.unpaused.set()
        self.num_sampled = 0
        self.asked: list[SamplingParams] = []
        self.support_tokens = 3
        """Tokens in the support of each token, where a request asks for supports."""
        self.aborted_samples = 0
        self.begin_gate: asyncio.Event | None = None
        self.sample_gate: asyncio.Event | None = None
        self.sample_error: ShoalError | None = None
        self.score_gate: asyncio.Event | None = None
        self.is_scoring = asyncio.Event()
        self.join_gate: asyncio.Event | None = None
        self.is_joining = asyncio.Event()
        self.load_gate: asyncio.Event | None = None
        self.load_error: ShoalError | None = None
        self.group_aborts: list[str] = []
        self.pauses: list[bool] = []
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def sample(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int, on_begin: Callable[[], None]
    ) -> Sample:
        self.num_sampled += 1
        self.asked.append(sampling)
        try:
            if self.begin_gate is not None:
                await self.begin_gate.wait()
            await self.unpaused.wait()
            on_begin()
            if self.sample_gate is not None:
                await self.sample_gate.wait()
                await self.unpaused.wait()
        except asyncio.CancelledError:
            self.aborted_samples += 1
            raise
        if self.sample_error is not None:
            raise self.sample_error
        count = sampling.max_completion_tokens
        token_ids = np.arange(seed, seed + count, dtype=np.int32)
        support = None
        if sampling.return_support:
            ids = token_ids[:, None] + np.arange(self.support_tokens, dtype=np.int32)
            support = Support(ids.flatten(), np.full(count, self.support_tokens, dtype=np.int32))
        return Sample(
            token_ids=token_ids,
            logprobs=np.full(count, -0.5, dtype=np.float32),
            finish_reason=FinishReason.LENGTH,
            version_spans=(VersionSpan(self.version, 0, count),),
            support=support,
        )

    async def admitted(self) -> None:
        await asyncio.sleep(0)

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        await self.unpaused.wait()
        self.is_scoring.set()
        if self.score_gate is not None:
            await self.score_gate.wait()
        return np.full(len(token_ids) - 1, -float(self.version.policy_version), dtype=np.float32)

    async def abort_all(self) -> None:
        pass

    async def pause(self, *, clear_cache: bool) -> None:
        self.pauses.append(clear_cache)
        self.unpaused.clear()

    async def resume(self) -> None:
        self.unpaused.set()

    async def sleep(self) -> None:
        self.is_asleep = True
        self.unpaused.clear()

    async def wake(self) -> None:
        self.is_asleep = False
        self.unpaused.set()

    async def check_manifest(self, manifest: Manifest) -> None:
        if manifest != MANIFEST:
            raise invalid("manifest.tensors", "the model has no such tensor")

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        self.is_joining.set()
        await self._wait_in_group(self.join_gate)

    async def abort_group(self, reason: str) -> None:
        self.group_aborts.append(reason)

    async def leave_group(self) -> None:
        pass

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        assert self.loads_while_sampling or not self.unpaused.is_set(), "loading while sampling kills the engine"
        on_ready()
        await self._wait_in_group(self.load_gate)
        assert self.loads_while_sampling or not self.unpaused.is_set(), "loading while sampling kills the engine"
        if self.load_error is not None:
            raise self.load_error
        self.version = version
        return LoadReport((TensorHash("w", "abc"),), receive_s=0.1, load_s=0.2)

    async def _wait_in_group(self, gate: asyncio.Event | None) -> None:
        num_aborts = len(self.group_aborts)
        while gate is not None and not gate.is_set():
            if len(self.group_aborts) > num_aborts:
                raise Unavailable(f"aborted: {self.group_aborts[-1]}")
            await asyncio.sleep(0.01)

    async def died(self) -> str:
        return await asyncio.shield(self.death)

    async def close(self) -> None:
        self.closed = True
