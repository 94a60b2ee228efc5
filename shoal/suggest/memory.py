"""Estimates the memory of each service.

A GiB is 2^30 bytes. The estimate is the peak of the memory in use. The fragmentation of the allocator and the runtime
come on top. `tests/acceptance` compares the estimates with real runs.

Letters: P parameters of the model, N ranks, T tokens of a row, H size of the hidden state, V vocabulary.
"""

from dataclasses import dataclass

from shoal.config.run import RunConfig
from shoal.models.adapter_targets import num_adapter_weights
from shoal.suggest.shape import ModelShape

GIB = 2**30
RUNTIME_BYTES = int(1.5 * GIB)
"""Memory of the CUDA context, kernels and graphs, in each process that uses a GPU."""
FREE_SHARE = 0.9
"""Usable share of a GPU's memory: the runtime and fragmentation take the rest."""
_FLOAT32, _BFLOAT16 = 4, 2
_FOUR_BITS = 0.5 + _FLOAT32 / 64
"""Bytes of a weight in 4 bits: the weight's code, and its share of the scale that 64 weights have in common."""
_ADAM_STATES = 2
_BUCKET_ELEMENTS = 50_000_000
"""Highest number of gradients that DeepSpeed reduces at once, as in `services/learner/engine/deepspeed_settings.py`."""
_FLAT_ELEMENTS = 500_000_000
"""Number of gradients that DeepSpeed flattens at stage 0, after the backward pass."""
_LIVE_ELEMENTS = 1_000_000_000
"""Number of parameters that DeepSpeed keeps gathered at stage 3 (its `stage3_max_live_parameters`)."""
_BATCHED_TOKENS = 8192
"""Maximum number of tokens in one forward pass of vLLM, with long prompts."""
_OF_A_STEP = ("casts", "activations", "output layer", "gathered weights")
"""Parts of a learner's memory that end with a train step."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, by purpose."""

    parts: dict[str, float]
    """Bytes on the device of the model: its GPU, or without a GPU the host's memory."""
    host: dict[str, float]
    """Bytes in the host's memory, if the model is on a GPU."""

    @property
    def total(self) -> float:
        """Sum of `parts`."""
        return sum(self.parts.values())

    @property
    def between_steps(self) -> float:
        """Sum of the `parts` that a learner keeps between two train steps, while an engine on the same GPU samples."""
        return sum(size for part, size in self.parts.items() if part not in _OF_A_STEP)

    @property
    def host_total(self) -> float:
        """Sum of `host`."""
        return sum(self.host.values())


def learner_memory(config: RunConfig, shape: ModelShape, *, is_fused: bool = True) -> Memory:
    """Estimates the memory of one learner rank. `is_fused` means that the fused modules run, as on a GPU.

    Trained weights, gradients and AdamW's two moments are float32 at every stage; from stage 1 on a rank has a second
    copy of the weights that it updates. The ranks divide the optimizer and this copy (from stage 1), the gradients
    (from stage 2) and the weights (stage 3). Below stage 2 gradients are complete until the step. In bfloat16
    casts of the weights are kept until the optimizer step; at stage 3 weights are gathered as casts.

    With adapters, these rules apply to the adapters. The frozen model is in its compute type, or in 4 bits.
    """
    learner = config.learner
    num_ranks = config.launch.num_learner_ranks
    stage = learner.stage_on(num_ranks)
    compute = _FLOAT32 if learner.compute_dtype == "float32" else _BFLOAT16
    trained = num_adapter_weights(learner.lora, shape.linear_layers) if learner.lora.is_on else shape.num_parameters
    own = trained / num_ranks
    frozen = _frozen_bytes(config, shape, compute) / (num_ranks if stage == 3 else 1)
    parts = {
        "weights": _FLOAT32 * (own if stage == 3 else trained) + frozen,
        "gradients": _FLOAT32 * (own if stage >= 2 else trained),
        "optimizer": _FLOAT32 * (_ADAM_STATES * own + own if stage >= 1 else _ADAM_STATES * trained),
        "casts": _BFLOAT16 * trained if stage < 3 and compute == _BFLOAT16 else 0.0,
    }
    host = {}
    if learner.offload_optimizer:
        # The gradients are offloaded too, since they are applied on the host.
        host = {name: _FLOAT32 * count * own for name, count in (("optimizer", _ADAM_STATES + 1), ("gradients", 1))}
        parts["optimizer"] = 0.0
        parts["gradients"] = 0.0 if stage >= 2 else parts["gradients"]
    if learner.offload_parameters:
        host["weights"] = parts["weights"]
        parts["weights"] = 0.0
    in_pass = {
        "activations": _activations(config, shape, compute, is_fused=is_fused and shape.can_be_fused),
        "output layer": _output_layer(config, shape, compute),
    }
    parts |= in_pass | _buffers(stage, shape, compute, trained, overlaps=not learner.offload_optimizer)
    if stage == 0:
        # This is allocated after the pass, so only its excess over the pass adds to the peak.
        flat = _FLOAT32 * min(trained, _FLAT_ELEMENTS)
        parts["buffers"] = max(0.0, flat - sum(in_pass.values()))
    if config.loads_reference:
        # A reference that follows the policy is stored like the policy.
        stored = shape.num_parameters / (num_ranks if stage == 3 else 1)
        parts["reference"] = stored * (compute if config.kl.reference_update_steps is None else _FLOAT32)
    return Memory(parts, host)


def _frozen_bytes(config: RunConfig, shape: ModelShape, compute: int) -> float:
    """Returns the bytes of the frozen model, on all ranks together at stage 3; 0 if the model is trained."""
    lora = config.learner.lora
    if not lora.is_on:
        return 0.0
    if lora.quantization == "none":
        return float(compute * shape.num_parameters)
    others = shape.num_parameters - shape.num_linear_weights
    return _FOUR_BITS * shape.num_linear_weights + compute * others


def _buffers(stage: int, shape: ModelShape, compute: int, trained: float, *, overlaps: bool) -> dict[str, float]:
    """Estimates DeepSpeed's buffers: at stages 1 and 2 a bucket of gradients, and a second one if a bucket is reduced
    while the next is filled; at stage 3 a bucket for each gathered type, a copy of the bucket that is being scattered,
    and the gathered parameters."""
    bucket = min(_BUCKET_ELEMENTS, trained)
    if stage == 3:
        buckets = bucket * (_FLOAT32 + _FLOAT32 + (_BFLOAT16 if compute == _BFLOAT16 else 0))
        embeddings = shape.vocab_size * shape.hidden
        # All parameters except embeddings and norms are gathered in the compute type.
        live = min(shape.num_parameters, _LIVE_ELEMENTS)
        gathered = compute * max(0, live - embeddings) + _FLOAT32 * min(live, embeddings)
        return {"buffers": float(buckets), "gathered weights": float(gathered)}
    return {"buffers": float(_FLOAT32 * bucket * (1 + overlaps)) if stage else 0.0}


def _activations(config: RunConfig, shape: ModelShape, compute: int, *, is_fused: bool) -> float:
    """Estimates the activations that are kept for the backward pass, and the activations of that pass in one layer.

    The residual stream is float32; projections keep their inputs in the compute type. Plain norms also keep their
    normalized states in float32, and a plain MLP keeps the activation of the gate. Fused modules keep neither, and
    their gradients overwrite what they kept. In attention each completion has a copy of its prompt; elsewhere the
    prompt occurs once.
    """
    learner = config.learner
    tokens = learner.row_tokens / learner.sequence_parallel_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    attention = compute * (2 * queries + 2 * keys) * _attention_share(config)
    norms = (2 if is_fused else 4) * _FLOAT32 * shape.hidden + 2 * compute * shape.hidden
    if shape.has_query_norms:
        norms += (compute if is_fused else compute + _FLOAT32) * (queries + keys)
    projections = compute * (queries + (3 if is_fused else 4) * shape.intermediate)
    layer = tokens * (attention + norms + projections)
    # The gradients of the current layer: those of the products in its MLP and of the residual stream.
    gradient = tokens * ((1 if is_fused else 3) * compute * shape.intermediate + 2 * _FLOAT32 * shape.hidden)
    if learner.gradient_checkpointing:
        return shape.num_layers * tokens * _FLOAT32 * shape.hidden + layer + gradient
    return shape.num_layers * layer + gradient


def _attention_share(config: RunConfig) -> float:
    """Returns the tokens in attention per token of a row that is full of completions of one prompt."""
    prompt, completion = config.data.max_prompt_tokens, config.sampling.max_completion_tokens
    fitting = max(1, (config.learner.row_tokens - prompt) // completion)
    siblings = min(config.grpo.group_size, fitting)
    return siblings * (prompt + completion) / (prompt + siblings * completion)


def _output_layer(config: RunConfig, shape: ModelShape, compute: int) -> float:
    """Estimates a chunk of logits on a GPU, which the gradient of the logits overwrites, and the layer's gradient, as
    far as it exists in addition to the sum over rows."""
    learner = config.learner
    bytes_per_token = compute * shape.vocab_size
    chunk_tokens = learner.chunk_tokens(bytes_per_token, on_cpu=False)
    tokens = min(chunk_tokens, learner.row_tokens / learner.sequence_parallel_size)
    stage = learner.stage_on(config.launch.num_learner_ranks)
    if learner.lora.is_on:
        bytes_per_weight = 0  # A frozen layer has no gradient.
    elif compute == _BFLOAT16 and stage < 3:
        # The products of the chunks add to the sum over rows. Only stage 2 takes this sum to its owner after each row.
        bytes_per_weight = _FLOAT32 if stage == 2 else 0
    else:
        bytes_per_weight = 2 * compute  # The chunks so far, and the next chunk.
    return bytes_per_token * tokens + bytes_per_weight * shape.vocab_size * shape.hidden


def engine_bytes(config: RunConfig) -> int:
    """Returns the bytes of a value in the engine."""
    return _FLOAT32 if config.generator.dtype == "float32" else _BFLOAT16


def generator_memory(config: RunConfig, shape: ModelShape, *, num_sequences: int | None = None) -> Memory:
    """Estimates the memory of one engine: weights, and a key-value cache for `num_sequences` whole completions.

    By default these are the completions that are decoded at once. Types are the engine's. Parallelism divides weights
    and cache. A forward pass adds its activations, and sampling adds float32 logits, their logarithms and their order.
    """
    num_bytes = engine_bytes(config)
    shards = config.generator.tensor_parallel_size * config.generator.pipeline_parallel_size
    if num_sequences is None:
        num_sequences = min(config.generator.max_num_seqs, config.grpo.completions_per_step)
    tokens = num_sequences * config.max_sequence_tokens
    batched = min(_BATCHED_TOKENS, tokens)
    queries = shape.num_heads * shape.head_dim
    widest = 2 * shape.hidden + max(2 * shape.intermediate, 3 * queries) + shape.intermediate
    return Memory(
        {
            "weights": num_bytes * shape.num_parameters / shards,
            "key-value cache": num_bytes * shape.cache_values_per_token * tokens / shards,
            "pass": num_bytes * batched * widest / shards + 3 * _FLOAT32 * shape.vocab_size * num_sequences,
        },
        {},
    )
