"""Language models, whole and empty."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

from services.learner.model.language_model import load_whole, make_empty, read_config
from services.learner.model.model_check import check_model
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from tests.support.tiny_model import add_code, make_tiny_model


def test_an_empty_model_has_the_form_of_the_loaded_one(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    loaded, empty = load_whole(tmp_path, torch.float32), make_empty(read_config(tmp_path), torch.float32)
    forms = [{name: (p.dtype, p.shape) for name, p in lm.named_parameters()} for lm in (loaded, empty)]
    assert forms[0] == forms[1]
    assert empty.lm_head.weight is empty.model.embed_tokens.weight
    for name, buffer in loaded.named_buffers():
        assert torch.equal(empty.get_buffer(name), buffer), name


def test_an_empty_model_takes_no_memory_until_its_weights_are_written() -> None:
    def anonymous_bytes() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    config = GPT2Config(n_embd=1024, n_layer=4, n_head=4)
    make_empty(GPT2Config(n_embd=8, n_layer=1, n_head=1), torch.float32)  # What is imported with the first model stays.
    before = anonymous_bytes()
    lm = make_empty(config, torch.float32)
    taken, size = anonymous_bytes() - before, sum(parameter.nbytes for parameter in lm.parameters())
    assert size > 400e6 and taken < size / 10, f"{taken / 1e6:.0f} MB of {size / 1e6:.0f}"


def test_an_empty_model_has_no_dropout() -> None:
    lm = make_empty(GPT2Config(n_embd=8, n_layer=1, n_head=1, attn_pdrop=0.5), torch.float32)
    assert {module.p for module in lm.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


def test_truncated_weights_are_an_error_that_names_the_folder(tmp_path: Path) -> None:
    weights = make_tiny_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidArgument, match=rf"model\.path: {tmp_path} cannot be loaded"):
        load_whole(tmp_path, torch.float32)


def test_code_in_the_folder_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    folder, marker = make_tiny_model(tmp_path / "model_with_code"), tmp_path / "ran"
    whole = load_whole(folder, torch.float32)
    add_code(folder, marker)
    for load in (read_config, lambda path: load_whole(path, torch.float32)):
        with pytest.raises(InvalidArgument, match="trust_remote_code"):
            load(folder)
    assert not marker.exists(), "the code ran although it is not trusted"
    check_model(folder, LearnerConfig(compute_dtype="float32"), trust_remote_code=True)
    trusted = load_whole(folder, torch.float32, trust_remote_code=True)
    assert type(trusted).__name__ == "OwnForCausalLM" and marker.exists()
    for name, parameter in trusted.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)), name
