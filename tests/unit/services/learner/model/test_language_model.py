"""Language models, whole and empty."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

from services.learner.model.language_model import load_whole, make_empty, read_config
from shoal.errors import InvalidArgument
from tests.support.tiny_model import make_tiny_model


def test_an_empty_model_has_the_form_of_the_loaded_one(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    loaded, empty = load_whole(tmp_path, torch.float32), make_empty(read_config(tmp_path), torch.float32)
    forms = [{name: (p.dtype, p.shape) for name, p in lm.named_parameters()} for lm in (loaded, empty)]
    assert forms[0] == forms[1]
    assert empty.lm_head.weight is empty.model.embed_tokens.weight
    for name, buffer in loaded.named_buffers():
        assert torch.equal(empty.get_buffer(name), buffer), name


def test_an_empty_model_has_no_dropout() -> None:
    lm = make_empty(GPT2Config(n_embd=8, n_layer=1, n_head=1, attn_pdrop=0.5), torch.float32)
    assert {module.p for module in lm.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


def test_truncated_weights_are_an_error_that_names_the_folder(tmp_path: Path) -> None:
    weights = make_tiny_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidArgument, match=rf"model\.path: {tmp_path} cannot be loaded"):
        load_whole(tmp_path, torch.float32)
