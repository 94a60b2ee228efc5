"""An engine made of vLLM's AsyncLLM: the one module here that knows it."""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from services.generator.engine import LoadReport, Sample
from services.generator.model_check import manifest_violation
from services.generator.vllm_start import StartedVllm, in_lasting_thread, start_vllm
from shoal import errors
from shoal.config.run import RunConfig
from shoal.errors import Aborted, DataLoss, DeadlineExceeded, Internal, InvalidArgument, ShoalError, Unavailable
from shoal.rollout import FinishReason, Float32Array, SamplingParams, VersionSpan, WeightVersion
from shoal.weights.group import GroupBoard, open_store
from shoal.weights.manifest import Manifest, TensorHash
from shoal.weights.rendezvous import Rendezvous

if TYPE_CHECKING:
    from vllm import RequestOutput

log = logging.getLogger(__name__)

T = TypeVar("T")

_BOARD_POLL_S = 0.01
_DEATH_POLL_S = 0.25
_END_S = 1.0
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class VllmEngine:
    """An `Engine`. Make it with `start`."""

    def __init__(self, started: StartedVllm, *, max_model_len: int, hostname: str | None) -> None:
        self._llm = started.llm
        self._started = started
        self._max_model_len = max_model_len
        self._hostname = hostname
        self._numbers = itertools.count()
        self._in_flight: set[str] = set()
        self._rendezvous: Rendezvous | None = None
        self._board: GroupBoard | None = None
        self._ranks: range = range(0)
        self._death = asyncio.create_task(self._watch())
        self._is_closing = False

    @classmethod
    async def start(cls, config: RunConfig, *, hostname: str | None = None) -> "VllmEngine":
        """Loads the model and starts the engine's processes, beside the event loop.

        `hostname` is this machine's address as its peers know it. Raises `InvalidArgument` for a model or a
        setting that vLLM does not take, and `Internal` when the engine does not start for another reason.
        """
        began = time.monotonic()
        started = await asyncio.wrap_future(in_lasting_thread(lambda: start_vllm(config)))
        # The first call ties the engine's sockets to this event loop, and proves that it answers.
        await started.llm.get_supported_tasks()
        log.info("engine started", extra={"model": config.model.path, "duration_s": time.monotonic() - began})
        return cls(started, max_model_len=config.max_model_len, hostname=hostname)

    @property
    def num_weight_ranks(self) -> int:
        return int(self._llm.vllm_config.parallel_config.world_size)

    @property
    def _knows_text(self) -> bool:
        return not self._llm.model_config.skip_tokenizer_init

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        return int(self._llm.model_config.get_vocab_size())

    async def sample(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> Sample:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        stops_at_text = bool(sampling.stop_strings)
        if stops_at_text and not self._knows_text:
            raise InvalidArgument(
                "sampling.stop_strings: this engine was started without a tokenizer, so it cannot find texts: give "
                "sampling.stop_strings in the configuration of the run"
            )
        output = await self._generate(
            prompt_token_ids,
            lambda: VllmSamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                max_tokens=sampling.max_completion_tokens,
                stop_token_ids=list(sampling.stop_token_ids),
                # Only what the caller asks for ends a completion: vLLM would add the model's own tokens.
                ignore_eos=True,
                seed=seed,
                logprobs=0,
                flat_logprobs=True,
                stop=list(sampling.stop_strings),
                include_stop_str_in_output=True,
                # Decoding costs time, and only stop strings need it.
                detokenize=stops_at_text,
                # A stop string may be, or hold, a special token.
                skip_special_tokens=False,
                spaces_between_special_tokens=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )
        return _sample(output)

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        output = await self._generate(
            token_ids,
            lambda: VllmSamplingParams(
                max_tokens=1,
                prompt_logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )
        found = output.prompt_logprobs
        # The first token has no predecessor, so no log-probability.
        starts = found.start_indices[1:]
        return np.array([found.logprobs[start] for start in starts], dtype=np.float32)

    async def _generate(self, token_ids: Sequence[int], make_params: Callable[[], Any]) -> "RequestOutput":
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request_id = str(next(self._numbers))
        self._in_flight.add(request_id)
        try:
            output = None
            async for update in self._llm.generate(tokens_input(list(token_ids)), make_params(), request_id):
                output = update
        except EngineDeadError as error:
            raise _dead() from error
        except (VLLMClientError, ValueError) as error:
            raise InvalidArgument(f"vLLM refuses the request: {error}") from error
        except EngineGenerateError as error:
            raise Internal(f"vLLM failed to sample: {error.__cause__!r}", reason="ENGINE_FAILED") from error
        finally:
            self._in_flight.discard(request_id)
        if output is None or output.outputs[0].finish_reason == "abort":
            raise Aborted("the engine dropped the request; sample it again", reason="REQUEST_DROPPED")
        return output

    async def abort_all(self) -> None:
        await self._alive(self._llm.abort(list(self._in_flight)))

    async def pause(self, *, clear_cache: bool) -> None:
        await self._alive(self._llm.pause_generation(mode="keep", clear_cache=clear_cache))

    async def resume(self) -> None:
        await self._alive(self._llm.resume_generation())

    async def sleep(self) -> None:
        if not self._llm.model_config.enable_sleep_mode:
            raise errors.FailedPrecondition(
                "the engine holds on to its memory: start it with generator.sleep_while_training", reason="CANNOT_SLEEP"
            )
        # Level 1: the weights are kept on the host, for a step that is skipped and so publishes nothing.
        await self._alive(self._llm.sleep(level=1, mode="keep"))

    async def wake(self) -> None:
        await self._alive(self._llm.wake_up())

    async def check_manifest(self, manifest: Manifest) -> None:
        violation = manifest_violation(manifest, self._started.shapes)
        if violation is not None:
            raise violation

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        deadline = time.monotonic() + rendezvous.timeout_s
        store = await asyncio.to_thread(
            open_store, rendezvous.store_host, rendezvous.store_port, is_master=False, timeout_s=rendezvous.timeout_s
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
        await self._alive(self._until(board, lambda: board.have_met(self._ranks), deadline))

    async def abort_group(self, reason: str) -> None:
        if self._board is not None:
            try:
                await asyncio.to_thread(self._board.abort, reason)
            except Unavailable:
                # Without the store the ranks notice by themselves.
                log.info("cannot tell the weight group that it is given up", extra={"abort_reason": reason})

    async def leave_group(self) -> None:
        self._rendezvous = self._board = None
        await self._alive(self._llm.shutdown_weight_transfer_engine())

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        try:
            return await self._alive(self._load(version, on_ready))
        except ShoalError as error:
            if error.reason != "ENGINE_DEAD":
                await self._alive(self._llm.collective_rpc("abandon_load"))
            raise

    async def _load(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        board = self._board
        if self._rendezvous is None or board is None:
            raise errors.FailedPrecondition("the generator is in no weight group", reason="NOT_A_MEMBER")
        load_id = str(next(self._numbers))
        deadline = time.monotonic() + self._rendezvous.timeout_s
        await _translated(self._llm.start_weight_update(), "start an update of the weights")
        update = asyncio.create_task(
            self._llm.update_weights(WeightTransferUpdateRequest(update_info={"load_id": load_id}))
        )
        ready = asyncio.create_task(self._until(board, lambda: board.are_ready(load_id, self._ranks), deadline))
        try:
            await asyncio.wait((update, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ready.exception():
                on_ready()
            # The ranks keep the deadline. The engine answers nothing until they are through.
            await asyncio.wait((update,))
        finally:
            ready.cancel()
        reports: list[dict[str, Any]] = await self._llm.collective_rpc("take_load_report")
        failed = next((report["error"] for report in reports if "error" in report), None)
        if failed is not None:
            # What the call raised says the same in other words; unread, asyncio would log it.
            update.exception()
            raise getattr(errors, failed["kind"])(failed["message"], reason=failed["reason"])
        await _translated(update, "receive weights")
        hashes = _hashes_of_all(reports)
        received = time.monotonic()
        await _translated(self._llm.finish_weight_update(str(version)), "put the weights into place")
        return LoadReport(
            hashes=hashes,
            receive_s=max(report["receive_s"] for report in reports),
            load_s=max(report["load_s"] for report in reports) + time.monotonic() - received,
        )

    async def _until(self, board: GroupBoard, is_so: Callable[[], bool], deadline: float) -> None:
        """Waits until the engine's ranks have said something on the group's board."""
        while not await asyncio.to_thread(is_so):
            reason = await asyncio.to_thread(board.abort_reason)
            if reason is not None:
                raise Unavailable(f"the weight group was given up: {reason}", reason="WEIGHT_GROUP_BROKEN")
            if time.monotonic() > deadline:
                await self.abort_group("not all members met in time")
                raise DeadlineExceeded("not all members of the weight group met in time", reason="WEIGHT_GROUP_TIMEOUT")
            await asyncio.sleep(_BOARD_POLL_S)

    async def died(self) -> str:
        return await asyncio.shield(self._death)

    async def _watch(self) -> str:
        while True:
            if self._llm.errored and not self._is_closing:
                errors_said = self._started.errors()
                said = f"the last error it logged: {errors_said[-1]}" if errors_said else "it logged no error"
                return f"a process of vLLM's engine ended; {said}"
            await asyncio.sleep(_DEATH_POLL_S)

    async def _alive(self, call: Awaitable[T]) -> T:
        """Awaits a call to the engine, which would never return if the engine died meanwhile."""
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((task, self._death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if self._death.done() and not self._death.cancelled():
            raise _dead()
        return await task

    async def close(self) -> None:
        self._is_closing = True
        self._death.cancel()
        if self._llm.output_handler is not None:
            # It would report the end of the engine as an error.
            self._llm.output_handler.cancel()
        # Nothing of the engine needs an orderly end.
        await asyncio.to_thread(self._llm.shutdown, _END_S)
        self._started.forget_errors()


def _sample(output: "RequestOutput") -> Sample:
    """Reads what vLLM returned."""
    completion = output.outputs[0]
    finish = _FINISH.get(completion.finish_reason)
    if finish is None:
        raise Internal(f"vLLM ended a completion for the reason {completion.finish_reason!r}", reason="ENGINE_FAILED")
    found = completion.logprobs
    return Sample(
        token_ids=np.array(completion.token_ids, dtype=np.int32),
        # The sampled token comes first at each position.
        logprobs=np.array([found.logprobs[start] for start in found.start_indices], dtype=np.float32),
        finish_reason=finish,
        version_spans=tuple(
            VersionSpan(WeightVersion.parse(span.version), span.start, span.end)
            for span in completion.weight_versions or ()
        ),
    )


def _hashes_of_all(reports: Sequence[dict[str, Any]]) -> tuple[TensorHash, ...]:
    """What every rank has received. Raises `DataLoss` where one has received something else."""
    first = reports[0]["hashes"]
    for rank, report in enumerate(reports):
        for (name, xxh3), (_, other) in zip(first, report["hashes"], strict=True):
            if xxh3 != other:
                raise DataLoss(
                    f"rank {rank} of the generator received another {name} than rank 0: {other}, not {xxh3}",
                    reason="WEIGHTS_DIFFER",
                )
    return tuple(TensorHash(name, xxh3) for name, xxh3 in first)


async def _translated(call: Awaitable[T], doing: str) -> T:
    """Awaits a call of the workers, whose errors are bare texts."""
    try:
        return await call
    except Exception as error:
        raise Internal(f"vLLM cannot {doing}: {error}", reason="ENGINE_FAILED") from error


def _dead() -> Unavailable:
    return Unavailable("the engine has died", reason="ENGINE_DEAD")
