"""Sizes of a model, from its config.json."""

from dataclasses import dataclass

from shoal.errors import InvalidArgument
from shoal.models.model_folder import read_json, resolve_model

_QUERY_NORMS = ("olmo2", "olmo3", "qwen3")
_FUSED = ("llama", "mistral", "qwen2", "smollm3", *_QUERY_NORMS)


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
    has_query_norms: bool
    """Whether queries and keys are normalized."""
    can_be_fused: bool
    """Whether the learner's fused modules for GPUs compute the norms and the MLP."""

    @property
    def num_parameters(self) -> int:
        """Number of weights: embeddings, attention, a gated MLP and two norms per layer, and the final norm."""
        queries = self.num_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        biases = queries + 2 * keys if self.has_attention_bias else 0
        embeddings = self.vocab_size * self.hidden * (1 if self.ties_embeddings else 2)
        return embeddings + self.num_linear_weights + self.num_layers * (biases + 2 * self.hidden) + self.hidden

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each linear layer of all blocks, by its usual name."""
        queries = self.num_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        block = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }
        return {
            f"model.layers.{number}.{name}": sizes for number in range(self.num_layers) for name, sizes in block.items()
        }

    @property
    def num_linear_weights(self) -> int:
        """Number of weights of the linear layers of all blocks."""
        return sum(outputs * inputs for outputs, inputs in self.linear_layers.values())

    @property
    def cache_values_per_token(self) -> int:
        """Number of keys and values of all layers, for one token."""
        return 2 * self.num_layers * self.num_key_value_heads * self.head_dim


def model_shape(path: str, revision: str | None = None) -> ModelShape:
    """Reads the sizes of a model from its config.json, without its weights.

    Raises `InvalidArgument` for anything but a dense decoder-only transformer.
    """
    folder = resolve_model(path, revision, weights=False)
    whole = read_json(folder / "config.json", field="--model")
    part = whole.get("text_config")
    config = {**whole, **(part if isinstance(part, dict) else {})}
    experts = next((name for name in config if name in ("num_experts", "num_local_experts", "n_routed_experts")), None)
    if experts is not None and config[experts] not in (None, 0, 1):
        raise InvalidArgument(
            f"--model {path}: {experts} = {config[experts]}: mixture-of-experts training is not yet available"
        )
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
            ties_embeddings=bool(whole.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            has_attention_bias=bool(config.get("attention_bias") or config.get("model_type") == "qwen2"),
            has_query_norms=config.get("model_type") in _QUERY_NORMS,
            can_be_fused=config.get("model_type") in _FUSED,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InvalidArgument(f"--model {path}: config.json does not give the size of the model ({error})") from None
