"""An engine of the generator that follows a script, for contract tests."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from services.generator.engine import LoadReport, Sample
from shoal.arrays import Float32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, ShoalError, Unavailable
from shoal.rollout import FinishReason, SamplingParams, Support, VersionSpan, WeightVersion
from shoal.token_run import TokenRun
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
    dtype = "float32"
    kv_cache_use: float | None = None

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
        self.tokens_at_gate = 1
        """Tokens that each completion has when it waits at `sample_gate`."""
        self._at_gate: set[asyncio.Task[Any]] = set()
        self.dropped = asyncio.Event()
        self.prompts: list[list[int]] = []
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
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        report_every: int = 0,
    ) -> Sample:
        self.num_sampled += 1
        self.asked.append(sampling)
        self.prompts.append(list(prompt_token_ids))
        try:
            if self.begin_gate is not None:
                await self.begin_gate.wait()
            await self.unpaused.wait()
            on_tokens(self._run(sampling, seed, 0, 1))
            if self.sample_gate is not None:
                await self._wait_at_gate(sampling, seed, on_tokens, report_every)
        except asyncio.CancelledError:
            self.aborted_samples += 1
            raise
        if self.sample_error is not None:
            raise self.sample_error
        return Sample(self._run(sampling, seed, 0, sampling.max_completion_tokens), FinishReason.LENGTH)

    async def _wait_at_gate(
        self, sampling: SamplingParams, seed: int, on_tokens: Callable[[TokenRun], None], report_every: int
    ) -> None:
        """Samples `tokens_at_gate` tokens, and waits there until the gate opens or the request is dropped."""
        assert self.sample_gate is not None
        reported = 1
        while report_every and reported + report_every <= self.tokens_at_gate:
            on_tokens(self._run(sampling, seed, reported, reported + report_every))
            reported += report_every
        dropped = asyncio.create_task(self.dropped.wait())
        opened = asyncio.create_task(self.sample_gate.wait())
        task = asyncio.current_task()
        assert task is not None
        self._at_gate.add(task)
        try:
            await asyncio.wait([dropped, opened], return_when=asyncio.FIRST_COMPLETED)
            if self.dropped.is_set():
                on_tokens(self._run(sampling, seed, reported, max(reported, self.tokens_at_gate)))
                raise Aborted("the engine dropped the request", reason=ErrorReason.REQUEST_DROPPED)
        finally:
            self._at_gate.discard(task)
            dropped.cancel()
            opened.cancel()
        await self.unpaused.wait()

    def _run(self, sampling: SamplingParams, seed: int, start: int, end: int) -> TokenRun:
        count = end - start
        token_ids = np.arange(seed % 1000 + start, seed % 1000 + end, dtype=np.int32)
        support = None
        if sampling.return_support:
            ids = token_ids[:, None] + np.arange(self.support_tokens, dtype=np.int32)
            support = Support(ids.flatten(), np.full(count, self.support_tokens, dtype=np.int32))
        spans = (VersionSpan(self.version, 0, count),) if count else ()
        return TokenRun(token_ids, np.full(count, -0.5, dtype=np.float32), spans, support)

    async def admitted(self) -> None:
        await asyncio.sleep(0)

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        await self.unpaused.wait()
        self.is_scoring.set()
        if self.score_gate is not None:
            await self.score_gate.wait()
        return np.full(len(token_ids) - 1, -float(self.version.policy_version), dtype=np.float32)

    async def abort_all(self) -> None:
        """Drops the requests at the gate. They have ended when this returns, as with vLLM."""
        self.dropped.set()
        if self._at_gate:
            await asyncio.wait(set(self._at_gate))

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
