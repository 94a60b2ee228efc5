"""Start of vLLM's AsyncLLM: environment, checks, engine arguments."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from services.generator.adapter_settings import adapter_arguments, slots_bytes
from services.generator.cpu_check import checked_on_cpu
from services.generator.gpu_cache import kv_cache_bytes
from services.generator.model_check import (
    CheckedModel,
    checked_model,
    expected_adapter,
    expected_tensors,
    tensors_to_keep,
)
from services.generator.plugin import BACKEND, ENGINE_MARK, SPOILED
from services.generator.torchvision_stand_in import stand_in_for_torchvision
from services.generator.vllm_sampling import fits_masks, keep_finite_logprobs, num_listed
from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, ShoalError, Unavailable
from shoal.full_memory import says_out_of_memory
from shoal.models.compute_dtype import settled_dtype
from shoal.models.model_folder import tokenizer_folder
from shoal.models.remote_code import warn_of_code
from shoal.weights.manifest import ELEMENT_BYTES

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.generator.workers.cache_use import CacheUse

T = TypeVar("T")

CPU_BLOCK_TOKENS = 32
"""Tokens of a key-value block on CPU. vLLM's 128 are more than many prompts, whose cache a group could not share."""

_MAX_SOCKET_FOLDER_BYTES = 70
"""Maximum length in bytes of a folder for sockets: Linux allows 107 for a socket's path, and vLLM's names take 37."""


def prepare_environment() -> None:
    """Sets the environment variables of vLLM, before vLLM is imported. Keeps variables that are already set."""
    for name, value in {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Threads that spin while they wait take cores from other processes.
        "OMP_WAIT_POLICY": "passive",
        # vLLM logs through the generator's handlers; its engine processes log warnings only.
        "VLLM_CONFIGURE_LOGGING": "0",
        # Otherwise torch prints a C++ stack for each poll of a store whose learner has ended.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_RPC_BASE_PATH": _folder_of_sockets(),
    }.items():
        os.environ.setdefault(name, value)


def _folder_of_sockets() -> str:
    """Returns the folder of temporary files, or /tmp if the paths of sockets in this folder would be too long."""
    folder = tempfile.gettempdir()
    is_short = len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER_BYTES
    return folder if is_short or not os.access("/tmp", os.W_OK | os.X_OK) else "/tmp"


def _check_sockets_fit() -> None:
    folder = os.environ["VLLM_RPC_BASE_PATH"]
    if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER_BYTES:
        raise FailedPrecondition(
            f"vLLM's sockets would be in {folder}, whose path has more than {_MAX_SOCKET_FOLDER_BYTES} bytes: Linux "
            "allows 107 bytes for the path of a socket. Set VLLM_RPC_BASE_PATH to a writable folder with a shorter "
            "path",
            reason=ErrorReason.ENGINE_REFUSED,
        )


def import_vllm() -> None:
    """Imports vLLM, which takes seconds. Call this function in a thread before the first configuration."""
    prepare_environment()
    # vLLM runs the plug-in in this process before the engine's environment is set.
    stand_in_for_torchvision()
    import vllm.v1.engine.async_llm  # noqa: F401  (for the module cache)


@dataclass(frozen=True)
class StartedVllm:
    """A running engine, with the shapes of the tensors that it receives and its error file."""

    llm: "AsyncLLM"
    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor of a publish, by name. The tensors belong to the model, or to its adapter."""
    error_file: Path
    """File to which the engine's processes write the errors that they log."""
    cache_use: "CacheUse"

    def errors(self) -> list[str]:
        """Returns the errors that the engine's processes have logged, oldest first, one line each."""
        return _lines(self.error_file)

    @property
    def folder(self) -> Path:
        """The folder of the engine's files. The files are deleted together with the folder."""
        return self.error_file.parent

    def delete_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def start_vllm(config: RunConfig) -> StartedVllm:
    """Starts the engine's processes and loads the model, which takes from seconds to minutes.

    Raises `InvalidArgument` for a model or a setting that vLLM refuses, `FailedPrecondition` if the paths of the
    engine's sockets are too long in every folder, `ResourceExhausted` if memory is full, `Internal` if the engine logs
    another reason, and `Unavailable` (ENGINE_DEAD) if a process of the engine ends without an error, for example
    because it was killed.
    """
    model = checked_model(config)
    trusts = config.model.trust_remote_code
    warn_of_code(model.folder, trust_remote_code=trusts)
    import_vllm()
    _check_sockets_fit()
    from vllm.platforms import current_platform

    from services.generator.workers.cache_use import start_engine

    _settle_kernels(config, on_cpu=current_platform.is_cpu())
    if current_platform.is_cpu():
        if config.generator.sleep_while_training:
            raise InvalidArgument(
                "generator.sleep_while_training: this generator has no GPU to share with the learner; set "
                "generator.sleep_while_training to false",
                reason=ErrorReason.ENGINE_REFUSED,
            )
        # vLLM compiles a few small functions even with enforce_eager. On CPU that needs a C++ compiler and seconds.
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    dtype = settled_dtype("generator.dtype", config.generator.dtype, model.dtype, on_cpu=current_platform.is_cpu())
    model = replace(model, dtype=dtype)
    if current_platform.is_cpu():
        model = checked_on_cpu(model, trust_remote_code=trusts)
    adapter: dict[str, tuple[int, ...]] = {}
    if config.generator.lora == "adapter":
        adapter = expected_adapter(model.folder, config.learner.lora, trust_remote_code=trusts)
    if config.sampling.is_restricted:
        keep_finite_logprobs()
    arguments = _engine_arguments(config, model, adapter, on_cpu=current_platform.is_cpu())
    error_file = Path(tempfile.mkdtemp(prefix="shoal-engine-")) / "errors"
    os.environ[ENGINE_MARK] = str(error_file)
    with _removed_on_failure(error_file.parent):
        try:
            # Use a thread: this process only waits while the engine's process starts.
            with ThreadPoolExecutor(1) as beside:
                shapes = beside.submit(lambda: adapter or expected_tensors(model.folder, trust_remote_code=trusts))
                llm, cache_use = start_engine(arguments)
                return StartedVllm(llm, shapes.result(), error_file, cache_use)
        except (ValueError, OSError) as error:
            raise InvalidArgument(
                f"vLLM refuses the model or the settings: {error}", reason=ErrorReason.ENGINE_REFUSED
            ) from error
        except RuntimeError as error:
            raise _not_started(error, _lines(error_file)) from error


def _not_started(error: RuntimeError, logged: Sequence[str]) -> ShoalError:
    """Makes the error of an engine that did not start, from the errors that its processes have logged."""
    if not logged:
        return Unavailable(
            f"a process of vLLM's engine ended while it started: {error}", reason=ErrorReason.ENGINE_DEAD
        )
    why = f"vLLM's engine did not start: {logged[0]}"
    if not says_out_of_memory(logged[0]):
        return Internal(why, reason=ErrorReason.ENGINE_FAILED)
    return ResourceExhausted(
        f"{why}; lower generator.gpu_memory_utilization, or raise generator.tensor_parallel_size; with "
        "launch.single_gpu, also lower learner.pack_tokens",
        reason=ErrorReason.ENGINE_FAILED,
    )


def _settle_kernels(config: RunConfig, *, on_cpu: bool) -> None:
    """Sets threads and kernels of the engine's processes. Raises `InvalidArgument` for a deterministic run on a GPU."""
    if config.run.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.run.num_threads)
    if config.run.deterministic and not on_cpu:
        raise InvalidArgument(
            "run.deterministic: this generator computes on a GPU, whose sums have no fixed order: set "
            "run.deterministic to false, or start a generator with vLLM's build for CPUs",
            reason=ErrorReason.ENGINE_REFUSED,
        )
    if config.run.deterministic:
        # Otherwise the last bits of MKL's products depend on the addresses of their matrices.
        os.environ["MKL_CBWR"] = "AUTO"
        # Otherwise MKL may use fewer threads than allowed. Torch sets this together with the number of threads, but
        # vLLM takes that number from the environment.
        os.environ["MKL_DYNAMIC"] = "FALSE"


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _engine_arguments(
    config: RunConfig, model: CheckedModel, adapter: dict[str, tuple[int, ...]], *, on_cpu: bool
) -> Any:
    """`adapter` has the shapes of the adapter's tensors, and is empty without an adapter."""
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.platforms import current_platform

    generator = config.generator
    # To score a whole context, vLLM samples one token more.
    max_model_len = min(config.max_model_len + 1, model.max_context_tokens or sys.maxsize)
    num_workers = generator.tensor_parallel_size * generator.pipeline_parallel_size
    cpu: dict[str, Any] = {
        "kv_cache_memory_bytes": int(generator.cpu_kv_cache_gib * 2**30),
        "block_size": CPU_BLOCK_TOKENS,
        "enforce_eager": True,
        # vLLM rewinds the random numbers of a request whose prompt it divides. Torch cannot do that on a CPU, and the
        # engine would end. Without chunks a step takes at least a whole context. A larger step alone does not help:
        # vLLM cuts the last prompt of any step to the room that is left. vLLM logs a warning about this setting.
        "enable_chunked_prefill": False,
    }
    if model.has_state:
        # To keep states in its prefix cache, vLLM divides prompts.
        cpu["enable_prefix_caching"] = False
    if num_workers == 1:
        # Use the class name. vLLM replaces the short name by an executor in another process, with a thread per core.
        cpu["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    gpu: dict[str, Any] = {
        "gpu_memory_utilization": generator.gpu_memory_utilization,
        "enforce_eager": generator.enforce_eager,
        "enable_sleep_mode": generator.sleep_while_training,
    }
    if not on_cpu:
        gpu["kv_cache_memory_bytes"] = kv_cache_bytes(
            config,
            model.dtype,
            current_platform.get_device_total_memory,
            adapter_bytes=slots_bytes(config, adapter.values(), ELEMENT_BYTES[model.dtype]) if adapter else 0,
        )
    return AsyncEngineArgs(
        model=str(model.folder),
        trust_remote_code=config.model.trust_remote_code,
        **_tokenizer_arguments(config, model),
        language_model_only=model.has_other_parts,
        hf_overrides=dict(model.overrides),
        **_support_arguments(config, on_cpu=on_cpu),
        **_order_arguments(config),
        **(adapter_arguments(config, adapter) if adapter else _first_weights(config, model)),
        dtype=model.dtype,
        max_model_len=max_model_len,
        tensor_parallel_size=generator.tensor_parallel_size,
        pipeline_parallel_size=generator.pipeline_parallel_size,
        max_num_seqs=generator.max_num_seqs,
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        worker_extension_cls="services.generator.workers.weight_transfer.WorkerExtension",
        seed=config.run.seed % 2**32,
        disable_log_stats=True,
        **(cpu if on_cpu else gpu),
    )


def _first_weights(config: RunConfig, model: CheckedModel) -> dict[str, Any]:
    """Returns the settings of the loader that spoils the first weights.

    Files that are not in safetensors are loaded as they are. In float16 the activations of wrong weights would overflow
    while vLLM measures its memory.
    """
    if not config.generator.spoil_first_weights or model.dtype == "float16":
        return {}
    keep = tensors_to_keep(model.folder, trust_remote_code=config.model.trust_remote_code)
    return {} if keep is None else {"load_format": SPOILED, "model_loader_extra_config": {"keep": keep}}


def _order_arguments(config: RunConfig) -> dict[str, Any]:
    """Returns the settings of vLLM's scheduler that affect the order in a deterministic run.

    Chunked prefills and the prefix cache need no change: both depend only on the requests of a batch, the order of the
    requests, and the cache, which is empty when a batch begins.
    """
    if not config.run.deterministic:
        return {}
    return {
        # Else vLLM may plan a step before it knows which completions have ended.
        "async_scheduling": False,
        # Keep the order in which the engine got the batch.
        "scheduling_policy": "fcfs",
    }


def _tokenizer_arguments(config: RunConfig, model: CheckedModel) -> dict[str, Any]:
    """Returns the settings of vLLM's tokenizer, which vLLM needs only to find stop strings."""
    if not config.has_stop_strings:
        return {"skip_tokenizer_init": True}
    tokenizer = config.model.tokenizer
    return {"tokenizer": str(model.folder if tokenizer is None else tokenizer_folder(tokenizer))}


def _support_arguments(config: RunConfig, *, on_cpu: bool) -> dict[str, Any]:
    """Returns the settings that let vLLM return the support of each token: masks, which need a GPU, or lists."""
    if not config.sampling.is_restricted:
        return {}
    if fits_masks(config) and not on_cpu:
        return {"return_sampling_mask": True}
    return {"max_logprobs": num_listed(config.sampling.top_k)}


def in_permanent_thread(work: Callable[[], T]) -> Future[T]:
    """Runs work in a thread that lives as long as the process.

    The engine's processes end with their parent, which for the kernel is the *thread* that started them.
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
