"""Tiny random models whose files are written as those on the hub are, by transformers 4.

Their config.json has `rope_theta` and `rope_scaling` at its top and `torch_dtype`, their tokenizer_config.json names a
class of transformers 4 and lists additional special tokens, and mixtures have a tensor for each expert.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_model import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS, make_tokenizer

EXTRA_TOKENS = ("<|vision_start|>", "<|vision_end|>")
_GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
_ROPE_OF_LLAMA = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}  # fmt: skip
_SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "initializer_range": 0.1,
    "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "use_cache": True, "torch_dtype": "float32",
    "transformers_version": "4.46.0",
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama3": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rope_theta": 500000.0,
        "rope_scaling": _ROPE_OF_LLAMA, "tie_word_embeddings": True, "mlp_bias": False, "pretraining_tp": 1,
    },
    "qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rope_theta": 1000000.0,
        "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 2,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "rope_theta": 1000000,
        "rope_scaling": None, "tie_word_embeddings": True, "use_sliding_window": False, "attention_bias": False,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None, "query_pre_attn_scalar": 32,
        "sliding_window_pattern": 2, "sliding_window": 16, "final_logit_softcapping": None,
    },
    "olmo3": {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "hidden_act": "silu", "rope_theta": 500000,
        "rope_scaling": {"attention_factor": 1.2, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                         "original_max_position_embeddings": 64, "rope_type": "yarn"},
        "tie_word_embeddings": False, "attention_bias": False, **_SLIDING,
    },
    "pythia": {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.25,
        "rotary_emb_base": 10000, "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "use_parallel_residual": True,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "rope_theta": 1000000.0,
        "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False, "sliding_window": None,
    },
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
        "rope_theta": 1000000.0, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False, **_EXPERTS,
    },
    "glm4-moe": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_act": "silu", "rope_theta": 1000000,
        "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "partial_rotary_factor": 0.5, "routed_scaling_factor": 1.0, "use_qk_norm": True, "attention_bias": True,
        "tie_word_embeddings": False, **_EXPERTS,
    },
}  # fmt: skip
"""Family -> what its config.json says beside the sizes."""


def make_published_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Writes a random model of a family into a new folder, as the hub has such models; returns the folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True)
    tokens = _TOKENIZERS[family](folder) if family in _TOKENIZERS else _byte_level(folder, "PreTrainedTokenizerFast")
    config = {**_SIZES, **CONFIGS[family], **tokens}
    _write(folder / "config.json", config)
    ends = [config["eos_token_id"]]
    _write(folder / "generation_config.json", {"do_sample": True, "temperature": 0.6, "eos_token_id": ends})
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as aside:
        torch.manual_seed(seed)
        lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        for name, buffer in lm.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.5)
        lm.save_pretrained(aside)
        (Path(aside) / "model.safetensors").rename(folder / "model.safetensors")
    return folder


def _byte_level(folder: Path, name: str, *, extra: tuple[str, ...] = (), **values: Any) -> dict[str, Any]:
    """Writes a tokenizer of bytes as transformers 4 does; returns what config.json says of it."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [END_OF_TEXT, *extra]})
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL_TOKENS, *extra)}
    _write_tokenizer_config(folder, name, ids, additional_special_tokens=[END_OF_TEXT, *extra], **values)
    _write(
        folder / "special_tokens_map.json", {"additional_special_tokens": [END_OF_TEXT, *extra], "eos_token": IM_END}
    )
    return {"vocab_size": len(tokenizer), "bos_token_id": ids[IM_START], "eos_token_id": ids[IM_END]}


def _qwen(folder: Path) -> dict[str, Any]:
    values = _byte_level(folder, "Qwen2Tokenizer", extra=EXTRA_TOKENS, errors="replace", split_special_tokens=False)
    _write(folder / "vocab.json", json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return values


def _olmo(folder: Path) -> dict[str, Any]:
    return _byte_level(folder, "GPT2Tokenizer", add_prefix_space=False, unk_token=END_OF_TEXT)


def _gemma(folder: Path) -> dict[str, Any]:
    """Writes a tokenizer of characters, with bytes for those that it has not, in the form of Gemma's."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    symbols = [*_GEMMA_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(33, 127))]
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    encoder = Tokenizer(BPE(vocab=ids, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    encoder.normalizer = normalizers.Replace(" ", "\u2581")
    encoder.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    encoder.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    encoder.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])])
    encoder.add_special_tokens(list(_GEMMA_TOKENS))
    encoder.save(str(folder / "tokenizer.json"))
    special = {token: ids[token] for token in _GEMMA_TOKENS}
    own = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    extra = {"boi_token": "<start_of_turn>", "eoi_token": "<end_of_turn>"}
    _write_tokenizer_config(folder, "GemmaTokenizer", special, add_bos_token=True, extra_special_tokens=extra, **own)
    return {"vocab_size": len(symbols), "bos_token_id": ids["<bos>"], "eos_token_id": ids["<eos>"], "pad_token_id": 0}


_TOKENIZERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "qwen2.5": _qwen, "qwen3": _qwen, "qwen3-moe": _qwen, "gemma3": _gemma, "olmo3": _olmo,
}  # fmt: skip


def _write_tokenizer_config(folder: Path, name: str, ids: dict[str, int], **values: Any) -> None:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "added_tokens_decoder": {str(number): {"content": token, **plain} for token, number in ids.items()},
        "bos_token": IM_START, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
        "eos_token": IM_END, "model_max_length": 512, "pad_token": SPECIAL_TOKENS[-1], "tokenizer_class": name,
    }  # fmt: skip
    _write(folder / "tokenizer_config.json", config | values)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
