"""Which weights stay float32 beside others of lower precision, and where they stand in a file."""

from pathlib import Path

import pytest
import torch

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
    "ernie4.5-moe": {"weight", "moe_statics.e_score_correction_bias"},
    "kimi-linear": {"forget_gate.A_log", "forget_gate.dt_bias", "o_norm.weight"},
}
"""The names of parameters, within a recurrent layer or a router, that stay float32. Short convolutions have none."""
_LAYERS = (".linear_attn.", ".mamba.", ".mixer.", ".self_attn.", ".mlp.gate.")


@pytest.mark.parametrize("family", FAMILIES | READERS)
def test_decays_norms_and_routers_that_need_it_stay_float32_and_nothing_else(family: str) -> None:
    with torch.device("meta"):
        lm = make_empty((FAMILIES | READERS)[family](), torch.float32)
    names = {weight.name for weight in list_weights(lm) if weight.is_float32}
    within = {name.partition(next(part for part in _LAYERS if part in name))[2] for name in names}
    assert within == IN_FLOAT32.get(family, set()), names


def test_files_of_a_model_saved_in_float32_get_few_tensors_in_float32_and_those_first(tmp_path: Path) -> None:
    """Readers need each tensor to begin at a multiple of its type's size."""
    forms = FileTensors(save_family("falcon-h1", tmp_path), torch.bfloat16, tmp_path).forms
    types = [form.dtype for form in forms.values()]
    num_float32 = 3 * len(IN_FLOAT32["falcon-h1"])
    assert types == [torch.float32] * num_float32 + [torch.bfloat16] * (len(types) - num_float32)
