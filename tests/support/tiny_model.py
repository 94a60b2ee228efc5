"""Tiny random Llamas with a tokenizer, for tests that need a real model at next to no cost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, PAD)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MAX_POSITION_EMBEDDINGS = 2048


def make_tiny_model(
    folder: Path, *, seed: int = 0, tie_embeddings: bool = True, heads: int = 2, key_heads: int | None = None
) -> Path:
    """Saves a random Llama with a byte-level tokenizer as a Hugging Face folder and returns the folder.

    2 layers, `heads` heads of 32 (the least that vLLM's CPU attention takes; fewer for keys with `key_heads`), a
    vocabulary of 260: every byte is a token of its own, so every text encodes and every sampled token decodes. With 2
    heads some 100,000 parameters in float32, with n heads about (n / 2)^2 times as many. The chat turns end with
    `<|im_end|>`, which is the eos token.
    """
    sizes = {"tie_word_embeddings": tie_embeddings, "num_key_value_heads": key_heads or heads}
    return _make_llama(folder, "LlamaForCausalLM", seed, heads, **sizes)


def _make_llama(folder: Path, class_name: str, seed: int, heads: int = 2, **settings: Any) -> Path:
    import torch
    import transformers

    tokenizer = make_tokenizer()
    defaults = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32 * heads,
        "intermediate_size": 64 * heads,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        # Wide enough that different tokens get clearly different log-probabilities.
        "initializer_range": 0.1,
        "bos_token_id": tokenizer.convert_tokens_to_ids(IM_START),
        "eos_token_id": tokenizer.convert_tokens_to_ids(IM_END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    config = transformers.LlamaConfig(**defaults | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, class_name)(config).to(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def add_code(folder: Path, marker: Path) -> Path:
    """Lets the model and tokenizer in a folder be classes of Python files there, which create `marker` when they run.

    Returns the folder.
    """
    (folder / "modeling_own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification\n"
        f"Path({str(marker)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
        "class OwnForSequenceClassification(LlamaForSequenceClassification):\n    config_class = OwnConfig\n"
    )
    (folder / "tokenization_own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import PreTrainedTokenizerFast\n"
        f"Path({str(marker)!r}).touch()\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    _change(
        folder / "config.json",
        model_type="own",
        auto_map={
            "AutoConfig": "modeling_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
            "AutoModelForSequenceClassification": "modeling_own.OwnForSequenceClassification",
        },
    )
    _change(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]},
    )
    return folder


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def make_tiny_reward_model(
    folder: Path, *, seed: int = 0, labels: Sequence[str] = ("score",), pad: bool = True
) -> Path:
    """Saves a random Llama that classifies sequences, of the size and with the tokenizer of `make_tiny_model`.

    Without `pad` its configuration names no padding token, as those of many reward models do not.
    """
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    padding = {} if pad else {"pad_token_id": None}
    return _make_llama(folder, "LlamaForSequenceClassification", seed, **named, **padding)


def byte_level_encoder() -> Any:
    """Makes the `Tokenizer` of the tiny model, 256 bytes and 4 special tokens, without transformers."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    encoder = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens(list(SPECIAL_TOKENS))
    return encoder


def make_tokenizer() -> Any:
    """Makes the tokenizer of the tiny model as one of transformers; needs no torch."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_encoder(),
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[END_OF_TEXT],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITION_EMBEDDINGS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
