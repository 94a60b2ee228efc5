"""Models that the learner refuses, seen from their configurations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from services.learner.model import policy
from services.learner.model.language_model import make_empty
from services.learner.model.model_check import check_model, shrunken
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from tests.support.tiny_families import save_family

LARGE = {
    "vocab_size": 100_000,
    "hidden_size": 256,
    "intermediate_size": 100_000,
    "num_hidden_layers": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 99_999,
}
"""Whole, such a model would have 8 billion parameters."""


SMALL = LARGE | {
    "hidden_size": 64, "head_dim": 32, "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
}  # fmt: skip


def settings(**values: object) -> LearnerConfig:
    return LearnerConfig.model_validate({"compute_dtype": "float32", **values})


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**LARGE),
        Qwen2Config(**LARGE, use_sliding_window=True, sliding_window=3, max_window_layers=50),
        Qwen3Config(**LARGE),
        Olmo2Config(**LARGE),
        MistralConfig(**LARGE, sliding_window=3),
        Gemma3TextConfig(**LARGE, sliding_window=3),
        GPT2Config(),
    ],
    ids=lambda config: config.model_type,
)
def test_architectures_that_compute_on_packed_rows_what_they_compute_alone_are_accepted_without_their_weights(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    check_model(tmp_path, settings())


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**LARGE, logits_scaling=4.0), FalconH1Config(**SMALL, lm_head_multiplier=1.0)],
    ids=lambda config: config.model_type,
)
def test_a_model_that_packing_would_break_is_refused(
    config: PreTrainedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "logit_scale", lambda text: 1.0)
    monkeypatch.setattr(policy, "pack_mixers", lambda lm, row: 0)
    config.save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"model\.path: \w+ .*packed rows"):
        check_model(tmp_path, settings())


def test_a_model_that_does_not_pass_the_layout_on_is_refused(tmp_path: Path) -> None:
    MambaConfig(hidden_size=32).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"model\.path: \w+ .*packed rows"):
        check_model(tmp_path, settings())


def test_recurrent_layers_and_sequence_parallelism_are_refused_together(tmp_path: Path) -> None:
    FalconH1Config(**SMALL).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"learner\.sequence_parallel_size: FalconH1\w+ .*FalconH1Mixer"):
        check_model(tmp_path, settings(sequence_parallel_size=2, zero_stage=3))


def test_a_model_that_caps_attention_scores_needs_an_implementation_that_can(tmp_path: Path) -> None:
    Gemma2Config(**LARGE, query_pre_attn_scalar=32).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"learner\.attention: sdpa "):
        check_model(tmp_path, settings(attention="sdpa"))
    check_model(tmp_path, settings(attention="eager"))


def test_heads_that_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    LlamaConfig(**LARGE).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"sequence_parallel_size \(3\) .*\(4\)"):
        check_model(tmp_path, settings(sequence_parallel_size=3, zero_stage=3))


def test_a_folder_without_a_model_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"model\.path: {tmp_path} cannot be loaded"):
        check_model(tmp_path, settings())


def test_a_configuration_that_contradicts_itself_is_named_in_the_error(tmp_path: Path) -> None:
    LlamaConfig(**LARGE).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 256', '"hidden_size": 255'))
    with pytest.raises(InvalidArgument, match=rf"(?s)model\.path: {tmp_path} cannot be loaded .*255"):
        check_model(tmp_path, settings())


def test_a_shrunken_configuration_has_one_layer_of_each_kind() -> None:
    config = Gemma3TextConfig(**LARGE)
    small = shrunken(config)
    assert small.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert small.num_hidden_layers == 3
    assert (small.vocab_size, small.intermediate_size, small.hidden_size) == (64, 64, 256)
    assert config.num_hidden_layers == 100, "the configuration itself stays as it is"


@pytest.mark.parametrize("config", [Gemma4TextConfig(num_kv_shared_layers=10), Qwen3NextConfig()])
def test_a_shrunken_model_is_small_with_shared_keys_and_with_experts(config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        lm = make_empty(shrunken(config), torch.float32)
    num_parameters = sum(parameter.numel() for parameter in lm.parameters())
    assert num_parameters < 1e9, f"{num_parameters / 1e6:,.0f} million parameters, {config.num_hidden_layers} layers"


DEEPSEEK_V3 = DeepseekV3Config(first_k_dense_replace=1)
QWEN3_30B = Qwen3MoeConfig(
    hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
    num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, intermediate_size=6144,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "num_experts", "most"),
    [
        (Qwen3MoeConfig(**LARGE, num_experts=4, num_experts_per_tok=2), 3, 1e6),
        (MixtralConfig(**LARGE, num_local_experts=2, num_experts_per_tok=2), 2, 1e6),
        (QWEN3_30B, 9, 60e6),
        (MixtralConfig(), 3, 100e6),
        (DEEPSEEK_V3, 24, 500e6),
        (Qwen3NextConfig(), 11, 120e6),
        (Llama4TextConfig(), 2, 300e6),
    ],
    ids=["tiny qwen3", "tiny mixtral", "qwen3", "mixtral", "deepseek", "qwen3-next", "llama4"],
)
def test_a_shrunken_mixture_has_one_expert_more_than_a_token_and_all_groups(
    config: PreTrainedConfig, num_experts: int, most: float
) -> None:
    small = shrunken(config)
    with torch.device("meta"):
        lm = make_empty(small, torch.float32)
    experts = {len(p) for name, p in lm.named_parameters() if name.endswith("experts.down_proj")}
    num_parameters = sum(parameter.numel() for parameter in lm.parameters())
    assert experts == {num_experts}, f"{experts} experts"
    assert num_parameters < most, f"{num_parameters / 1e6:,.0f} million values, {small.num_hidden_layers} layers"


def test_a_mixture_that_chooses_groups_of_experts_first_is_accepted(tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32}
    config = DeepseekV3Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, moe_intermediate_size=32,
        first_k_dense_replace=1, n_routed_experts=64, num_experts_per_tok=8, n_group=8, topk_group=4, **sizes,
    )  # fmt: skip
    assert shrunken(config).n_routed_experts == 24
    config.save_pretrained(tmp_path)
    check_model(tmp_path, settings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ["*.mlp.gat.*"]}, r"learner\.freeze: .* \(did you mean \*\.mlp\.gate\.\* or "),
        ({"lora": {"rank": 4}}, r"learner\.lora\.target_modules: peft would also adapt the experts model\.layers\.1"),
    ],
)
def test_a_part_that_cannot_be_trained_is_refused_before_weights_are_read(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    save_family("glm4.5-moe", tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(InvalidArgument, match=message):
        check_model(tmp_path, LearnerConfig.model_validate(settings))


def test_the_learner_warns_of_experts_that_get_no_adapter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_family("qwen3-moe", tmp_path)
    check_model(tmp_path, LearnerConfig.model_validate({"lora": {"rank": 4}}))
    assert "leaves out the experts" in caplog.text
    caplog.clear()
    check_model(tmp_path, LearnerConfig.model_validate({"lora": {"rank": 4, "target_modules": ["q_proj"]}}))
    assert "leaves out" not in caplog.text
