"""Which weights stay float32 beside others of lower precision, and where they stand in a file."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Ernie4_5_MoeConfig

from services.learner.model.language_model import make_empty
from services.learner.model.weights import list_weights
from services.learner.storage.file_tensors import FileTensors
from tests.support.tiny_families import FAMILIES, READERS, save_family

DELTA = {"A_log", "dt_bias", "norm.weight"}
MAMBA = {"A_log", "D", "dt_bias"}
IN_FLOAT32 = {
    "qwen3-next": DELTA,
    "qwen3.5": DELTA,
    "qwen3.5-moe": DELTA,
    "qwen3.5-whole": DELTA,
    "qwen3.5-moe-whole": DELTA,
    "granite4": MAMBA | {"norm.weight"},
    "granite4-dense": MAMBA | {"norm.weight"},
    "nemotron-h": MAMBA | {"norm.weight"},
    "bamba": MAMBA | {"norm.weight"},
    "falcon-h1": MAMBA,
    "olmo-hybrid": {"A_log", "dt_bias", "o_norm.weight"},
    "kimi-linear": {"forget_gate.A_log", "forget_gate.dt_bias", "o_norm.weight"},
}
"""The names of parameters, within a recurrent layer, that stay float32. Short convolutions (LFM2) have none."""
_LAYERS = (".linear_attn.", ".mamba.", ".mixer.", ".self_attn.")


@pytest.mark.parametrize("family", FAMILIES | READERS)
def test_decays_and_norms_of_recurrent_layers_stay_float32_and_nothing_else(family: str) -> None:
    with torch.device("meta"):
        lm = make_empty((FAMILIES | READERS)[family](), torch.float32)
    names = {weight.name for weight in list_weights(lm) if weight.is_float32}
    within = {name.partition(next(part for part in _LAYERS if part in name))[2] for name in names}
    assert within == IN_FLOAT32.get(family, set()), names


def test_what_transformers_keeps_in_float32_stays_so() -> None:
    config = Ernie4_5_MoeConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, moe_num_experts=2, moe_k=1)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    names = [weight.name for weight in list_weights(lm) if weight.is_float32]
    assert names == [f"model.layers.1.mlp.gate.{part}" for part in ("weight", "moe_statics.e_score_correction_bias")]


def test_files_of_a_model_saved_in_float32_get_few_tensors_in_float32_and_those_first(tmp_path: Path) -> None:
    """Readers need each tensor to begin at a multiple of its type's size."""
    forms = FileTensors(save_family("falcon-h1", tmp_path), torch.bfloat16, tmp_path).forms
    types = [form.dtype for form in forms.values()]
    num_float32 = 3 * len(IN_FLOAT32["falcon-h1"])
    assert types == [torch.float32] * num_float32 + [torch.bfloat16] * (len(types) - num_float32)
