"""How much memory each service will take, from the model's own config.json.

GiB here are 2^30 bytes. The estimate leaves out what an allocator loses to fragments; `tests/integration` holds it
against a real run.
"""

from dataclasses import dataclass

from shoal.config.run import RunConfig
from shoal.errors import InvalidArgument
from shoal.models import read_json, resolve_model

GIB = 2**30
_FLOAT32, _BFLOAT16 = 4, 2
_ADAM_STATES = 2


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    ties_embeddings: bool
    has_attention_bias: bool

    @property
    def num_parameters(self) -> int:
        """Weights: embeddings, attention, a gated MLP and two norms a layer, and the last norm."""
        queries = self.num_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        attention += queries + 2 * keys if self.has_attention_bias else 0
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocab_size * self.hidden * (1 if self.ties_embeddings else 2)
        return embeddings + self.num_layers * layer + self.hidden

    @property
    def cache_values_per_token(self) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.num_layers * self.num_key_value_heads * self.head_dim


def model_shape(path: str, revision: str | None = None) -> ModelShape:
    """Reads a model's sizes from its config.json, without its weights.

    Raises `InvalidArgument` when it is no dense decoder-only transformer.
    """
    folder = resolve_model(path, revision, weights=False)
    whole = read_json(folder / "config.json", field="--model")
    part = whole.get("text_config")
    config = {**whole, **(part if isinstance(part, dict) else {})}
    experts = next((name for name in config if name in ("num_experts", "num_local_experts", "n_routed_experts")), None)
    if experts is not None and config[experts] not in (None, 0, 1):
        raise InvalidArgument(f"--model {path}: {experts} = {config[experts]}: mixture-of-experts training is put off")
    try:
        heads = int(config["num_attention_heads"])
        return ModelShape(
            num_layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            num_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab_size=int(config["vocab_size"]),
            ties_embeddings=bool(config.get("tie_word_embeddings", False)),
            has_attention_bias=bool(config.get("attention_bias") or config.get("model_type") == "qwen2"),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InvalidArgument(f"--model {path}: config.json does not tell the model's size ({error})") from None


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, by what they are for."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


def learner_memory(config: RunConfig, shape: ModelShape) -> Memory:
    """Of one learner rank.

    Weights, gradients and AdamW's two moments are float32 at every stage. ZeRO 1 to 3 keep a further float32 copy of
    the weights that a rank updates, and shard over the ranks: the optimizer and that copy; the gradients too; the
    weights too. bfloat16 compute casts the weights as they are used, and keeps the casts until the backward pass.
    """
    learner, ranks = config.learner, config.launch.num_learner_ranks
    stage, size = learner.zero_stage, shape.num_parameters
    compute = _FLOAT32 if learner.compute_dtype == "float32" else _BFLOAT16
    tokens = learner.pack_tokens / learner.sequence_parallel_size
    own = size / ranks
    parts = {
        "weights": _FLOAT32 * (own if stage == 3 else size),
        "gradients": _FLOAT32 * (own if stage >= 2 else size),
        "optimizer": _FLOAT32 * _ADAM_STATES * (own if stage >= 1 else size) + (_FLOAT32 * own if stage >= 1 else 0),
        "casts": 0.0 if compute == _FLOAT32 else _BFLOAT16 * (own if stage == 3 else size),
        "activations": _activations(shape, tokens, compute, checkpointing=learner.gradient_checkpointing),
        # A chunk's logits, their gradient and their float32 softmax exist at once.
        "logits": 3 * _FLOAT32 * shape.vocab_size * min(learner.logits_chunk_tokens, tokens),
    }
    if learner.offload_optimizer:
        parts["optimizer"] = 0.0
    if learner.offload_parameters:
        parts["weights"] = 0.0
    if config.kl.needs_reference:
        # One that follows the policy is held as the policy is.
        held = compute if config.kl.reference_update_steps is None else _FLOAT32
        parts["reference"] = held * (own if stage == 3 else size)
    return Memory(parts)


def _activations(shape: ModelShape, tokens: float, num_bytes: int, *, checkpointing: bool) -> float:
    """Kept for the backward pass: a layer's inputs to its norms, projections, attention and gated MLP."""
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    # The residual stream twice, both norms' outputs (and float32 inside them), q, k, v and the attention's output,
    # and the MLP's gate, up, activation and product.
    layer = tokens * num_bytes * (6 * shape.hidden + 3 * queries + 4 * keys + 4 * shape.intermediate)
    stream = tokens * num_bytes * shape.hidden
    return shape.num_layers * stream + layer if checkpointing else shape.num_layers * layer


def generator_memory(config: RunConfig, shape: ModelShape, *, num_sequences: int | None = None) -> Memory:
    """Of one generator's engine: weights, and a key-value cache for `num_sequences` completions of full length.

    Left out, it is as many as are decoded at once. Types are the engine's; tensor and pipeline parallelism shard both.
    """
    num_bytes = _FLOAT32 if config.generator.dtype == "float32" else _BFLOAT16
    shards = config.generator.tensor_parallel_size * config.generator.pipeline_parallel_size
    if num_sequences is None:
        num_sequences = min(config.generator.max_num_seqs, config.grpo.group_size * config.grpo.groups_per_step)
    tokens = num_sequences * config.max_sequence_tokens
    return Memory(
        {
            "weights": num_bytes * shape.num_parameters / shards,
            "key-value cache": num_bytes * shape.cache_values_per_token * tokens / shards,
        }
    )
