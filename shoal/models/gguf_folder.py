"""Converts a GGUF file to a Hugging Face folder, with numpy alone.

transformers can load a GGUF file itself, but needs torch even for the tokenizer, and takes seconds each time. The
coordinator and the reward service have no torch. So the file is converted once, into a folder that every library reads.
This module has its own writer of safetensors, since the library's writer needs bfloat16, which numpy lacks.

Sources: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md) and the safetensors format
(github.com/huggingface/safetensors).
"""

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import InvalidArgument

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_log = logging.getLogger(__name__)
_LOG_EVERY_S = 2.0
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes config, generation config, tokenizer and bfloat16 weights of a GGUF file into a folder.

    Reads the llama architecture with a byte-level BPE tokenizer. Raises `InvalidArgument` for any other model.
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    if metadata["general.architecture"] != "llama" or metadata["tokenizer.ggml.model"] != "gpt2":
        raise InvalidArgument(
            f"{gguf_file} has architecture {metadata['general.architecture']!r} and tokenizer "
            f"{metadata['tokenizer.ggml.model']!r}; Shoal reads only architecture llama with tokenizer gpt2"
        )
    _log.info("unpacking: writing tokenizer and weights")
    tensor_names = {tensor.name for tensor in reader.tensors}
    config = _config(metadata, tied="output.weight" not in tensor_names)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _token_ids(metadata))
    _write_json(folder / "tokenizer.json", _tokenizer(metadata))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    _write_weights(folder / "model.safetensors", reader.tensors, metadata)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    keys = {ours: f"tokenizer.ggml.{theirs}" for ours, theirs in names.items()}
    return {ours: metadata[key] for ours, key in keys.items() if key in metadata}


def _config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    theta = metadata.get("llama.rope.freq_base", 10000.0)
    # The file has float32; the shortest decimal that reads back the same is the original value.
    epsilon = float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"])))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": epsilon,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **_token_ids(metadata),
    }


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """Builds the `tokenizer.json` of a byte-level BPE vocabulary."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    splits: list[dict[str, Any]] = [byte_level]
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        # Each digit is a token of its own.
        splits.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    keys = {f"{ours}_token": f"tokenizer.ggml.{theirs}_token_id" for ours, theirs in special.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
        **{ours: tokens[metadata[key]] for ours, key in keys.items() if key in metadata},
    }


def _write_weights(path: Path, tensors: list[Any], metadata: dict[str, Any]) -> None:
    """Writes a safetensors file, with one tensor in memory at a time."""
    names = {tensor.name: _tensor_name(tensor.name) for tensor in tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        end = offset + 2 * int(np.prod(shape))
        header[names[tensor.name]] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        shown_at = time.monotonic()
        for number, tensor in enumerate(tensors, start=1):
            if time.monotonic() > shown_at + _LOG_EVERY_S:
                shown_at = time.monotonic()
                _log.info("unpacking: tensor %d of %d", number, len(tensors))
            file.write(_bfloat16(_values(tensor, metadata)).tobytes())


def _tensor_name(name: str) -> str:
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.{kind}"


def _values(tensor: Any, metadata: dict[str, Any]) -> npt.NDArray[np.float32]:
    from gguf import dequantize

    values: npt.NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
    heads = metadata["llama.attention.head_count"]
    if tensor.name.endswith("attn_q.weight"):
        return _halves_apart(values, heads)
    if tensor.name.endswith("attn_k.weight"):
        return _halves_apart(values, metadata.get("llama.attention.head_count_kv", heads))
    return values


def _halves_apart(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Reorders the rows of each head from GGUF's order to Hugging Face's.

    Rotary embedding rotates pairs of rows. GGUF stores the two rows of a pair next to each other. Hugging Face stores
    the first rows of all pairs before the second rows.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds to the nearest bfloat16, ties to even, and returns the bits."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")
