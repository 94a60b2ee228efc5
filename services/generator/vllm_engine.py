"""An engine made of vLLM's AsyncLLM: the one module here that knows it."""

import asyncio
import itertools
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from services.generator.engine import LoadReport, Sample
from services.generator.model_check import CheckedModel, checked_model, expected_tensors, manifest_violation
from services.generator.plugin import BACKEND, ENGINE_MARK
from shoal import errors
from shoal.config.run import RunConfig
from shoal.errors import Aborted, DeadlineExceeded, Internal, InvalidArgument, ShoalError, Unavailable
from shoal.rollout import FinishReason, Float32Array, SamplingParams, VersionSpan, WeightVersion
from shoal.weights.group import GroupBoard, open_store
from shoal.weights.manifest import Manifest, TensorHash
from shoal.weights.rendezvous import Rendezvous

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

T = TypeVar("T")

_BOARD_POLL_S = 0.01
_DEATH_POLL_S = 0.25
_END_S = 1.0
_CPU_BLOCK_TOKENS = 32
"""Tokens of a key-value block on CPU. vLLM's own choice, 128, is longer than many prompts, so that the completions
of a group would share nothing of theirs."""

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def prepare_environment() -> None:
    """Sets what vLLM reads from the environment, before it is imported. What a person has set stays."""
    for name, value in {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Threads that spin while they wait starve whatever shares the cores with them.
        "OMP_WAIT_POLICY": "passive",
        # vLLM's logs join the generator's; in the engine's processes only warnings come through.
        "VLLM_CONFIGURE_LOGGING": "0",
        # Else torch prints a C++ stack for each poll of a store whose learner has gone.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def import_vllm() -> None:
    """Imports vLLM, which takes seconds: worth doing while nothing else is asked of the process."""
    prepare_environment()
    import vllm.v1.engine.async_llm  # noqa: F401  (kept by the interpreter)


class VllmEngine:
    """An `Engine`. Make it with `start`."""

    def __init__(
        self, llm: "AsyncLLM", *, max_model_len: int, shapes: dict[str, tuple[int, ...]], hostname: str | None
    ):
        self._llm = llm
        self._max_model_len = max_model_len
        self._shapes = shapes
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
        started = time.monotonic()
        llm, shapes = await asyncio.wrap_future(_in_lasting_thread(lambda: _build(config)))
        # The first call ties the engine's sockets to this event loop, and proves that it answers.
        await llm.get_supported_tasks()
        log.info("engine started", extra={"model": config.model.path, "duration_s": time.monotonic() - started})
        return cls(llm, max_model_len=config.max_model_len, shapes=shapes, hostname=hostname)

    @property
    def num_weight_ranks(self) -> int:
        return int(self._llm.vllm_config.parallel_config.world_size)

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        return int(self._llm.model_config.get_vocab_size())

    async def sample(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> Sample:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

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
                detokenize=False,
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
        from vllm.v1.engine.exceptions import EngineDeadError

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

    async def check_manifest(self, manifest: Manifest) -> None:
        violation = manifest_violation(manifest, self._shapes)
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
            raise getattr(errors, failed["kind"])(failed["message"], reason=failed["reason"])
        await _translated(update, "receive weights")
        received = time.monotonic()
        await _translated(self._llm.finish_weight_update(str(version)), "put the weights into place")
        return LoadReport(
            hashes=tuple(TensorHash(name, xxh3) for name, xxh3 in reports[0]["hashes"]),
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
                return "a process of vLLM's engine ended; its last words are in this process's stderr"
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


def _build(config: RunConfig) -> tuple["AsyncLLM", dict[str, tuple[int, ...]]]:
    """Starts the engine. Takes from seconds to minutes."""
    model = checked_model(config)
    import_vllm()
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    if current_platform.is_cpu():
        # vLLM compiles a few small functions even when told not to, which on CPU takes a C++ compiler and seconds.
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        _check_head_size(model.folder)
    arguments = _engine_arguments(config, model, on_cpu=current_platform.is_cpu())
    with tempfile.TemporaryDirectory(prefix="shoal-engine-") as folder:
        first_error = Path(folder) / "error"
        os.environ[ENGINE_MARK] = str(first_error)
        try:
            llm = AsyncLLM.from_engine_args(arguments)
        except (ValueError, OSError) as error:
            raise InvalidArgument(f"vLLM refuses model or settings: {error}", reason="ENGINE_REFUSED") from error
        except Exception as error:
            cause = first_error.read_text(encoding="utf-8") if first_error.exists() else f"{error}"
            raise Internal(f"vLLM's engine did not start: {cause}", reason="ENGINE_FAILED") from error
    return llm, expected_tensors(model.folder)


def _engine_arguments(config: RunConfig, model: CheckedModel, *, on_cpu: bool) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig

    generator = config.generator
    # Scoring a whole context has vLLM sample one token more.
    max_model_len = min(config.max_model_len + 1, model.max_context_tokens or sys.maxsize)
    num_workers = generator.tensor_parallel_size * generator.pipeline_parallel_size
    cpu: dict[str, Any] = {
        "kv_cache_memory_bytes": int(generator.cpu_kv_cache_gib * 2**30),
        "block_size": _CPU_BLOCK_TOKENS,
        "enforce_eager": True,
    }
    if num_workers == 1:
        # Named by its class, since by its short name vLLM would replace it with an extra process.
        cpu["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    gpu = {
        "gpu_memory_utilization": generator.gpu_memory_utilization,
        "enforce_eager": generator.enforce_eager,
    }
    return AsyncEngineArgs(
        model=str(model.folder),
        skip_tokenizer_init=True,
        dtype=model.dtype,
        max_model_len=max_model_len,
        tensor_parallel_size=generator.tensor_parallel_size,
        pipeline_parallel_size=generator.pipeline_parallel_size,
        max_num_seqs=generator.max_num_seqs,
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        worker_extension_cls="services.generator.weight_transfer.WorkerExtension",
        seed=config.run.seed % 2**32,
        disable_log_stats=True,
        **(cpu if on_cpu else gpu),
    )


def _check_head_size(folder: Path) -> None:
    """vLLM's CPU attention takes few sizes of heads, and dies of others at the first request."""
    from transformers import AutoConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = AutoConfig.from_pretrained(folder).get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    supported = CPUAttentionBackend.get_supported_head_sizes()
    if head_dim not in supported:
        raise InvalidArgument(
            f"model.path: {folder} has heads of {head_dim}, vLLM on CPU takes only "
            f"{', '.join(map(str, supported))}; take another model, or a GPU",
            reason="ENGINE_REFUSED",
        )


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


async def _translated(call: Awaitable[T], doing: str) -> T:
    """Awaits a call of the workers, whose errors are bare texts."""
    try:
        return await call
    except Exception as error:
        raise Internal(f"vLLM cannot {doing}: {error}", reason="ENGINE_FAILED") from error


def _dead() -> Unavailable:
    return Unavailable("the engine has died", reason="ENGINE_DEAD")


def _in_lasting_thread(work: Callable[[], T]) -> Future[T]:
    """Runs work in a thread that then stays for as long as the process.

    The kernel ends a process tied to its parent when the parent's *thread* that started it ends.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=run, name="engine", daemon=True).start()
    return future
