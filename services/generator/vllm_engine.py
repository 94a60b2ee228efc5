"""The engine that samples with vLLM's AsyncLLM."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from services.generator.engine import LoadReport, Sample, engine_died, request_dropped
from services.generator.model_check import manifest_violation
from services.generator.vllm_sampling import (
    finish_reason,
    read_logprobs,
    read_tokens,
    sampling_params,
    scoring_params,
    versions_so_far,
)
from services.generator.vllm_start import StartedVllm, in_permanent_thread, start_vllm
from services.generator.workers.reports import error_of, hashes_of_all, translated
from shoal.arrays import Float32Array
from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, ShoalError, Unavailable
from shoal.rollout import SamplingParams, WeightVersion
from shoal.token_run import TokenRun, joined
from shoal.weights.board import CONNECTED, GroupBoard, open_store, receiving
from shoal.weights.manifest import Manifest
from shoal.weights.rendezvous import Rendezvous

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.lora.request import LoRARequest

log = logging.getLogger(__name__)

T = TypeVar("T")

_BOARD_POLL_S = 0.01
_DEATH_POLL_S = 0.25
_END_S = 1.0
_GRACE_S = 1.0


class VllmEngine:
    """An `Engine` of vLLM. Create it with `start`."""

    loads_while_sampling = False

    def __init__(self, started: StartedVllm, *, max_model_len: int, hostname: str | None) -> None:
        self._llm = started.llm
        self._started = started
        self._max_model_len = max_model_len
        self._hostname = hostname
        self._numbers = itertools.count()
        self._in_flight: set[str] = set()
        self._num_loads = 0
        self._rendezvous: Rendezvous | None = None
        self._board: GroupBoard | None = None
        self._ranks: range = range(0)
        self._death = asyncio.create_task(self._watch())
        self._is_closing = False

    @classmethod
    async def start(cls, config: RunConfig, *, hostname: str | None = None) -> Self:
        """Loads the model and starts the engine's processes, without blocking the event loop.

        `hostname` is the address at which peers reach this machine. Raises `InvalidArgument` for what vLLM refuses,
        `Unavailable` (ENGINE_DEAD) when a process of the engine ends, and `Internal` for other failures.
        """
        began = time.monotonic()
        started = await asyncio.wrap_future(in_permanent_thread(lambda: start_vllm(config)))
        from vllm.v1.engine.exceptions import EngineDeadError

        engine = cls(started, max_model_len=config.max_model_len, hostname=hostname)
        try:
            # The first call binds the engine's sockets to this event loop, and proves that the engine answers.
            await engine._alive(started.llm.get_supported_tasks())
        except EngineDeadError as error:
            raise engine_died() from error
        log.info("engine started", extra={"model": config.model.path, "duration_s": time.monotonic() - began})
        return engine

    @property
    def num_weight_ranks(self) -> int:
        return int(self._llm.vllm_config.parallel_config.world_size)

    @property
    def _has_tokenizer(self) -> bool:
        return not self._llm.model_config.skip_tokenizer_init

    @property
    def _returns_masks(self) -> bool:
        return bool(self._llm.model_config.return_sampling_mask)

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        return int(self._llm.model_config.get_vocab_size())

    @property
    def dtype(self) -> str:
        return str(self._llm.model_config.dtype).removeprefix("torch.")

    @property
    def kv_cache_use(self) -> float | None:
        return self._started.cache_use.share

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        report_every: int = 0,
    ) -> Sample:
        if sampling.stop_strings and not self._has_tokenizer:
            raise InvalidArgument(
                "sampling.stop_strings: this engine was started without a tokenizer, so the engine cannot find "
                "strings; set sampling.stop_strings in the configuration of the run"
            )
        masks, size = self._returns_masks, self.vocab_size
        make_params = partial(sampling_params, sampling, seed, report_every=report_every, masks=masks, vocab_size=size)
        runs: list[TokenRun] = []
        num_tokens, ended = 0, None
        async with aclosing(self._generate(prompt_token_ids, make_params)) as outputs:
            async for output in outputs:
                ended = output.outputs[0].finish_reason
                run = read_tokens(output, num_tokens, with_support=sampling.return_support)
                num_tokens += run.num_tokens
                runs.append(run)
                if ended in (None, "abort"):
                    on_tokens(run)
        if ended in (None, "abort"):
            raise request_dropped()
        return Sample(joined(runs), finish_reason(ended))

    async def admitted(self) -> None:
        # vLLM registers a request and sends it to the engine without a pause in between.
        while True:
            await asyncio.sleep(0)
            if self._llm.output_processor.get_num_unfinished_requests() >= len(self._in_flight):
                return

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        make_params = partial(scoring_params, masks=self._returns_masks)
        outputs = [output async for output in self._generate(token_ids, make_params)]
        if not outputs or outputs[-1].outputs[0].finish_reason == "abort":
            raise request_dropped()
        return read_logprobs(outputs[-1])

    def _generate(
        self, token_ids: Sequence[int], make_params: Callable[[], Any]
    ) -> "AsyncGenerator[RequestOutput, None]":
        """Yields the outputs of a request.

        The weight versions of an output cover the completion from its first token on.
        """
        return self._request(token_ids, make_params, None)

    async def _request(
        self, token_ids: Sequence[int], make_params: Callable[[], Any], lora: "LoRARequest | None"
    ) -> "AsyncGenerator[RequestOutput, None]":
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request_id = str(next(self._numbers))
        self._in_flight.add(request_id)
        try:
            # A request may only read cached prefixes of requests that began between the same two loads. Versions do not
            # distinguish them: the next run of this engine counts from 0 again.
            prompt = tokens_input(list(token_ids), cache_salt=str(self._num_loads))
            async with aclosing(self._llm.generate(prompt, make_params(), request_id, lora_request=lora)) as outputs:
                async for output in outputs:
                    if not output.finished:
                        output.outputs[0].weight_versions = versions_so_far(self._llm, request_id)
                    yield output
        except EngineDeadError as error:
            raise engine_died() from error
        except (VLLMClientError, ValueError) as error:
            raise InvalidArgument(f"vLLM refuses the request: {error}") from error
        except EngineGenerateError as error:
            raise Internal(f"vLLM failed to sample: {error.__cause__!r}", reason=ErrorReason.ENGINE_FAILED) from error
        finally:
            self._in_flight.discard(request_id)

    async def abort_all(self) -> None:
        await self._alive(self._llm.abort(list(self._in_flight)))

    async def pause(self, *, clear_cache: bool) -> None:
        await self._alive(self._llm.pause_generation(mode="keep", clear_cache=clear_cache))

    async def resume(self) -> None:
        await self._alive(self._llm.resume_generation())

    async def sleep(self) -> None:
        if not self._llm.model_config.enable_sleep_mode:
            raise FailedPrecondition(
                "the engine cannot free its memory: set generator.sleep_while_training to true",
                reason=ErrorReason.CANNOT_SLEEP,
            )
        # Level 1 keeps the weights on the host, since a skipped step publishes no weights.
        await self._alive(self._llm.sleep(level=1, mode="keep"))

    async def wake(self) -> None:
        await self._alive(self._llm.wake_up())

    async def check_manifest(self, manifest: Manifest) -> None:
        violation = manifest_violation(manifest, self._started.shapes)
        if violation is not None:
            raise violation

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        # The ranks enforce the deadline, and name the missing members.
        deadline = time.monotonic() + rendezvous.timeout_s + _GRACE_S
        store = await asyncio.to_thread(
            open_store, rendezvous.store_host, rendezvous.store_port, timeout_s=rendezvous.timeout_s
        )
        board = GroupBoard(store, rendezvous.run_id, rendezvous.epoch)
        self._rendezvous, self._board = rendezvous, board
        self._ranks = range(rank_offset, rank_offset + self.num_weight_ranks)
        info = {
            "rendezvous": asdict(rendezvous),
            "rank_offset": rank_offset,
            "hostname": self._hostname,
            "tensors": [(spec.name, spec.dtype, list(spec.shape)) for spec in manifest.tensors],
        }
        await self._alive(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info)))
        await self._alive(self._until(board, lambda: board.have_reached(CONNECTED, self._ranks), deadline))

    async def abort_group(self, reason: str) -> None:
        if self._board is not None:
            try:
                await asyncio.to_thread(self._board.abort, reason)
            except Unavailable:
                # If the store is gone, the ranks notice by themselves.
                log.info("cannot post the abort to the weight group", extra={"abort_reason": reason})

    async def leave_group(self) -> None:
        self._rendezvous = self._board = None
        await self._alive(self._llm.shutdown_weight_transfer_engine())

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        try:
            return await self._alive(self._load(version, on_ready))
        except ShoalError as error:
            if error.reason != ErrorReason.ENGINE_DEAD:
                await self._alive(self._llm.collective_rpc("abandon_load"))
            raise

    async def _load(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        board, load_id, deadline = self._begin_load()
        self._num_loads += 1
        await translated(self._llm.start_weight_update(), "start a weight update")
        update = asyncio.create_task(
            self._llm.update_weights(WeightTransferUpdateRequest(update_info={"load_id": load_id}))
        )
        is_receiving = partial(board.have_reached, receiving(load_id), self._ranks)
        ready = asyncio.create_task(self._until(board, is_receiving, deadline))
        try:
            await asyncio.wait((update, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ready.exception():
                on_ready()
            # The ranks enforce the deadline. The engine answers no call until they have ended.
            await asyncio.wait((update,))
        finally:
            ready.cancel()
        reports: list[dict[str, Any]] = await self._llm.collective_rpc("take_load_report")
        if (failure := error_of(reports)) is not None:
            # The call raised the same error in other words. Retrieve this one too, or asyncio logs it.
            update.exception()
            raise failure
        await translated(update, "receive weights")
        hashes = hashes_of_all(reports)
        received = time.monotonic()
        await translated(self._llm.finish_weight_update(str(version)), "put the weights in place")
        return LoadReport(
            hashes=hashes,
            receive_s=max(report["receive_s"] for report in reports),
            load_s=max(report["load_s"] for report in reports) + time.monotonic() - received,
        )

    def _begin_load(self) -> tuple[GroupBoard, str, float]:
        """Returns the group's board, an id for a load, and its deadline in `time.monotonic()`."""
        if self._rendezvous is None or self._board is None:
            raise FailedPrecondition("the generator has joined no weight group", reason=ErrorReason.NOT_A_MEMBER)
        return self._board, str(next(self._numbers)), time.monotonic() + self._rendezvous.timeout_s

    async def _until(self, board: GroupBoard, is_so: Callable[[], bool], deadline: float) -> None:
        """Waits until the group's board has a message from the engine's ranks."""
        while not await asyncio.to_thread(is_so):
            reason = await asyncio.to_thread(board.abort_reason)
            if reason is not None:
                raise Unavailable(
                    f"the weight group was aborted: {reason}",
                    reason=ErrorReason.WEIGHT_GROUP_BROKEN,
                    metadata=await asyncio.to_thread(board.missing),
                )
            if time.monotonic() > deadline:
                await self.abort_group("not all members joined in time")
                raise DeadlineExceeded(
                    "not all members of the weight group joined in time", reason=ErrorReason.WEIGHT_GROUP_TIMEOUT
                )
            await asyncio.sleep(_BOARD_POLL_S)

    async def died(self) -> str:
        return await asyncio.shield(self._death)

    async def _watch(self) -> str:
        while True:
            if self._llm.errored and not self._is_closing:
                errors_logged = self._started.errors()
                log_end = f"the last error in its log: {errors_logged[-1]}" if errors_logged else "its log has no error"
                return f"a process of vLLM's engine ended; {log_end}"
            await asyncio.sleep(_DEATH_POLL_S)

    async def _alive(self, call: Awaitable[T]) -> T:
        """Awaits a call to the engine, or the death of the engine. After the death the call would never return."""
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((task, self._death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if self._death.done() and not self._death.cancelled():
            raise engine_died()
        return await task

    async def close(self) -> None:
        self._is_closing = True
        self._death.cancel()
        if self._llm.output_handler is not None:
            # The handler would report the end of the engine as an error.
            self._llm.output_handler.cancel()
        # The engine keeps nothing that an orderly end would save.
        await asyncio.to_thread(self._llm.shutdown, _END_S)
        self._started.delete_files()
