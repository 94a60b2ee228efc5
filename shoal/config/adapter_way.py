"""What `generator.lora = "adapter"` asks of the other tables."""

from shoal.config.lora import LoraConfig
from shoal.config.services import ADAPTER_RANKS, GeneratorConfig, WeightsConfig


def check_adapter_way(generator: GeneratorConfig, lora: LoraConfig, weights: WeightsConfig) -> None:
    """Raises `ValueError` for settings with which an engine cannot get its policy as an adapter."""
    if generator.lora == "merged":
        return
    if not lora.is_on:
        raise ValueError(
            f'generator.lora "adapter" needs learner.lora.rank above 0 (it is {lora.rank}): otherwise the learner '
            "trains the whole model"
        )
    unfit = {
        f"learner.lora.rank {lora.rank}: vLLM takes at most {ADAPTER_RANKS[-1]}": lora.rank > ADAPTER_RANKS[-1],
        f'learner.lora.quantization "{lora.quantization}": the adapters belong to the quantized model, and '
        "generators have the model itself": lora.quantization != "none",
        "generator.keep_stale_kv: each completion keeps its version, and its cache with it": generator.keep_stale_kv,
        "weights.backend nccl: adapters are received while the engine's own NCCL is in use": weights.backend == "nccl",
    }
    for reason, is_so in unfit.items():
        if is_so:
            raise ValueError(f'generator.lora "adapter" does not go with {reason}; change that, or use "merged"')
