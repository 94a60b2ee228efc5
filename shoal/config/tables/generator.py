"""The `[generator]` table: the engines that sample."""

from typing import Annotated, Literal

from pydantic import Field

from shoal.config.tables.section import AT_ONCE, Section

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters for which vLLM makes room. An adapter of another rank takes the room of the next higher rank."""


class GeneratorConfig(Section):
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights. `auto` is the model's type, or float32 on a CPU without instructions for it."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Maximum length of prompt plus completion. If unset: `data.max_prompt_tokens + sampling.max_completion_tokens`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share each layer of a generator."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Stages into which a generator's layers are divided, each on its own GPUs."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that the engine uses. Not used on CPU."""
    gpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the key-value cache on each GPU, in GiB. If unset, vLLM measures the memory that `gpu_memory_utilization`
    leaves. With `launch.single_gpu`, where the learner would disturb this, the size follows from the model's sizes."""
    cpu_kv_cache_gib: float = Field(default=1.0, gt=0)
    """Size of the key-value cache on CPU, in GiB."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Maximum number of completions that are decoded at once."""
    max_queued_requests: int = Field(default=1024, ge=1)
    """Maximum number of completions that wait. Further completions are refused with RESOURCE_EXHAUSTED."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs: the engine starts faster and samples more slowly. Always on for a CPU."""
    spoil_first_weights: bool = True
    """Start the engine with wrong weights: those of the model's files, but each tensor that a publish replaces is
    multiplied by -16, and 8 is subtracted from vectors. A layer that does not take its weights from the first publish
    then fails the canary. Every rank reads the model's files whole for this. The engine starts with the files as they
    are in float16, whose range wrong weights would exceed, and with `generator.lora = "adapter"`, since a publish does
    not replace the model's tensors."""
    sleep_while_training: bool = False
    """Release the GPU's memory while the learner trains on the GPU: the engine moves the weights to the host's memory
    and discards the key-value cache. Needs a GPU, and `grpo.max_staleness` 0."""
    lora: Literal["merged", "adapter"] = "merged"
    """How the policy of `learner.lora` gets into the engine. `merged` publishes all weights with the adapters added to
    the weights, and sampling costs nothing more. `adapter` publishes only the adapters, some MB, while the engine
    samples, and each completion ends under the version under which it began. With `adapter` sampling costs more, on a
    CPU several times as much."""
    keep_stale_kv: bool = False
    """Keep the key-value cache of running requests across a weight update instead of recomputing the cache. This is
    faster, but the log-probabilities of these requests then belong to no single policy. Requests that begin after the
    update share no cache with requests from before."""
    report_every_tokens: Annotated[int, AT_ONCE] = Field(default=256, ge=0)
    """Number of new tokens of an unfinished completion after which a generator reports these tokens. A completion that
    is lost with its generator continues elsewhere from its last report. With 0 nothing is reported, and a lost group is
    sampled again as a whole, as with `run.deterministic`."""
