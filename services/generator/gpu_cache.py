"""The size of the key-value cache on a GPU that the engine shares with the learner."""

from collections.abc import Callable

from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument
from shoal.suggest.memory import GIB, RUNTIME_BYTES, generator_memory
from shoal.suggest.shape import model_shape


def kv_cache_bytes(config: RunConfig, dtype: str, total_bytes: Callable[[], int], adapter_bytes: int = 0) -> int | None:
    """Returns the bytes of the cache on each GPU; None if vLLM should measure the free memory.

    vLLM measures the memory of the whole device before and after it loads. On a shared GPU vLLM would count the
    learner's memory as its own, and would refuse to start if the learner released memory meanwhile. `dtype` is the type
    of the engine's weights. `total_bytes` returns the size of the GPU's memory, and adapters take `adapter_bytes` of
    this memory. Raises `InvalidArgument` when nothing is left for a cache, or when the sizes of the model are unknown.
    """
    generator = config.generator
    if generator.gpu_kv_cache_gib is not None:
        return int(generator.gpu_kv_cache_gib * GIB)
    if not config.launch.single_gpu:
        return None
    resolved = config.model_copy(update={"generator": generator.model_copy(update={"dtype": dtype})})
    try:
        shape = model_shape(config.model.path, config.model.revision)
    except InvalidArgument as error:
        raise InvalidArgument(
            "set generator.gpu_kv_cache_gib: launch.single_gpu needs this value, but the value cannot be computed "
            f"from the model's sizes: {error.message}",
            reason=ErrorReason.ENGINE_REFUSED,
        ) from None
    needs = generator_memory(resolved, shape, num_sequences=generator.max_num_seqs).parts
    taken = needs["weights"] + needs["pass"] + adapter_bytes + RUNTIME_BYTES
    used = generator.gpu_memory_utilization
    share = used * total_bytes()
    if share <= taken:
        raise InvalidArgument(
            f"generator.gpu_memory_utilization: {used} of this GPU is {share / GIB:.1f} GiB, but the engine takes "
            f"about {taken / GIB:.1f} GiB without a key-value cache; raise generator.gpu_memory_utilization, or set "
            "generator.gpu_kv_cache_gib",
            reason=ErrorReason.ENGINE_REFUSED,
        )
    return int(share - taken)
