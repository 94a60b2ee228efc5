"""Tiny random models that can also read images, in files as transformers writes them."""

from pathlib import Path
from typing import Any

from tests.support.tiny_families import READERS
from tests.support.tiny_model import make_tokenizer


def make_tiny_reader(folder: Path, family: str, *, seed: int = 1) -> Any:
    """Saves a random whole model of a family, and returns its text part as the learner loads it, in float32."""
    import torch

    from services.learner.model.language_model import load_whole
    from shoal.models.text_part import auto_class

    config = READERS[family]()
    text = config.get_text_config()
    text.vocab_size, text.max_position_embeddings, text.eos_token_id = 320, 1024, None
    if hasattr(text, "vocab_size_per_layer_input"):
        text.vocab_size_per_layer_input = text.vocab_size
    if hasattr(text, "linear_key_head_dim"):
        # vLLM's kernel on a CPU takes no other sizes.
        text.linear_key_head_dim = text.linear_value_head_dim = 128
    if hasattr(text, "num_experts"):
        # In bfloat16 a router would choose other experts where their scores are close.
        text.num_experts_per_tok = text.num_experts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm = auto_class(config).from_config(config, dtype=torch.float32)
        for parameter in lm.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    lm.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return load_whole(folder, torch.float32)
