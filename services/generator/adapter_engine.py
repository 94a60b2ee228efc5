"""The engine that keeps the model's own weights and samples with an adapter (`generator.lora = "adapter"`)."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from services.generator.adapter_settings import adapter_config
from services.generator.adapter_versions import Adapter, Adapters
from services.generator.engine import LoadReport
from services.generator.vllm_engine import VllmEngine
from services.generator.workers.reports import error_of, hashes_of_all, translated
from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument, ShoalError
from shoal.rollout import WeightVersion
from shoal.weights.adapter import layer_of
from shoal.weights.board import received, receiving
from shoal.weights.manifest import TensorHash

if TYPE_CHECKING:
    from vllm import RequestOutput

_GRACE_S = 1.0


class AdapterEngine(VllmEngine):
    """A `VllmEngine` that receives adapters while it samples. Each request keeps the adapter with which it began.

    Every request has an adapter: on a CPU, vLLM would give a request without an adapter the adapter of another request
    in the same batch. Until the first version arrives, an adapter of zeros does nothing.
    """

    loads_while_sampling = True
    _adapters: Adapters

    @classmethod
    async def start(cls, config: RunConfig, *, hostname: str | None = None) -> Self:
        engine = await super().start(config, hostname=hostname)
        try:
            engine._adapters = Adapters(engine._llm, adapter_config(config), engine._started.folder)
            await engine._refuse_unused_tensors()
            await engine._load_zeros()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _refuse_unused_tensors(self) -> None:
        """Raises `InvalidArgument` for layers without an adapter in vLLM, which would silently ignore their
        adapters."""
        names = list(self._started.shapes)
        used: list[list[str]] = await self._alive(self._llm.collective_rpc("used_tensors", args=(names,)))
        unused = sorted({layer_of(name) for name in set(names).difference(*used)})
        if unused:
            raise InvalidArgument(
                f"generator.lora: vLLM has no adapters for {len(unused)} layers of this model, including {unused[0]}: "
                'set generator.lora to "merged", or leave these layers out of learner.lora.target_modules',
                reason=ErrorReason.ENGINE_REFUSED,
            )

    async def _load_zeros(self) -> None:
        from safetensors.numpy import save_file

        adapter = self._adapters.make(WeightVersion(0, 0))
        save_file({name: np.zeros(shape, np.float16) for name, shape in self._started.shapes.items()}, adapter.file)
        await self._put_in_place(adapter)

    async def _put_in_place(self, adapter: Adapter) -> None:
        await self._alive(translated(self._adapters.switch(adapter), "load the adapter"))

    async def _generate(
        self, token_ids: Sequence[int], make_params: Callable[[], Any]
    ) -> "AsyncGenerator[RequestOutput, None]":
        from vllm.outputs import WeightVersionSpan

        num_tokens = 0
        with self._adapters.using() as adapter:
            async with aclosing(self._request(token_ids, make_params, adapter.request)) as outputs:
                async for output in outputs:
                    num_tokens += len(output.outputs[0].token_ids)
                    # vLLM's own versions belong to the model's weights.
                    output.outputs[0].weight_versions = [WeightVersionSpan(str(adapter.version), 0, num_tokens)]
                    yield output

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        adapter = self._adapters.make(version)
        try:
            hashes, receive_s = await self._alive(self._receive(adapter.file, on_ready))
            arrived = time.monotonic()
            await self._put_in_place(adapter)
        except BaseException:
            adapter.delete()
            raise
        return LoadReport(hashes, receive_s, load_s=time.monotonic() - arrived)

    async def _receive(self, file: Path, on_ready: Callable[[], None]) -> tuple[tuple[TensorHash, ...], float]:
        """Receives the tensors of an adapter into a file. Returns their hashes and the seconds taken."""
        board, load_id, deadline = self._begin_load()
        begin = self._llm.collective_rpc("begin_adapter", args=(load_id, str(file)))
        await translated(begin, "receive an adapter")
        broken: ShoalError | None = None
        try:
            # The ranks enforce the deadline.
            await self._until(board, lambda: board.have_reached(receiving(load_id), self._ranks), deadline + _GRACE_S)
            on_ready()
            await self._until(board, lambda: board.have_reached(received(load_id), self._ranks), deadline + _GRACE_S)
        except ShoalError as error:
            broken = error
        # In an aborted group the ranks soon end, and their errors are more precise.
        reports: list[dict[str, Any]] = await self._llm.collective_rpc("take_adapter_report")
        failure = error_of(reports) or broken
        if failure is not None:
            raise failure
        return hashes_of_all(reports), max(report["receive_s"] for report in reports)
