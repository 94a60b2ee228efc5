"""Adapters on a tiny model: where they go, what they change, and what they leave alone."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from services.learner.engine.whole_weights import whole_adapters, whole_weights
from services.learner.model.adapters import add_adapters, find_targets, switched_off
from services.learner.model.language_model import load_whole
from services.learner.model.model_check import check_model
from services.learner.model.packing import sequence_row
from services.learner.model.policy import load_policy
from services.learner.model.weights import adapted_layers, list_weights
from shoal.config.tables.learner import LearnerConfig
from shoal.config.tables.lora import LoraConfig, Quantization
from shoal.errors import InvalidArgument
from tests.support.published_models import make_published_model
from tests.support.tiny_families import save_family
from tests.support.tiny_model import make_tiny_model
from tests.support.train_batches import make_groups

LORA = LoraConfig(rank=4, alpha=8)
ROW = sequence_row([group.prompt_token_ids for group in make_groups()])


def adapted(folder: Path, config: LoraConfig = LORA, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    lm = load_whole(folder, dtype)
    add_adapters(lm, config, seed=seed)
    return lm


def trained(lm: Any) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in lm.named_parameters() if parameter.requires_grad}


def settings(**fields: object) -> LearnerConfig:
    return LearnerConfig.model_validate({"compute_dtype": "float32", "lora": {"rank": 4, **fields}})


def disturb(lm: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in trained(lm).items():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05, generator=generator)


def test_all_linear_is_every_linear_layer_but_the_output_layer(tmp_path: Path) -> None:
    for tie in (True, False):
        lm = load_whole(make_tiny_model(tmp_path / f"tied-{tie}", tie_embeddings=tie), torch.float32)
        targets = find_targets(lm, ["all-linear"])
        assert len(targets) == 14 and not any("lm_head" in name for name in targets), targets


@pytest.mark.parametrize("family", ["falcon-h1", "granite4-dense", "nemotron-h", "bamba"])
def test_the_output_projections_of_mamba_layers_have_no_adapter(family: str, tmp_path: Path) -> None:
    """peft refuses some of them, and a fused kernel would ignore the adapters of all."""
    lm = save_family(family, tmp_path)
    with pytest.raises(InvalidArgument, match=r'"out_proj" .* Mamba .* in_proj'):
        find_targets(lm, ["out_proj"])
    targets = find_targets(lm, ["all-linear"])
    add_adapters(lm, LORA, seed=0)
    assert [name for name, _ in adapted_layers(lm)] == targets
    ends = {name.rpartition(".")[2] for name in targets}
    assert "in_proj" in ends and "out_proj" not in ends, ends


def test_the_output_projections_of_gated_delta_nets_have_adapters(tmp_path: Path) -> None:
    lm = save_family("qwen3.5", tmp_path)
    assert len(find_targets(lm, ["linear_attn.out_proj"])) == 2


def test_names_of_layers_may_be_ends_or_whole(folder: Path) -> None:
    lm = load_whole(folder, torch.float32)
    assert find_targets(lm, ["q_proj", "model.layers.1.mlp.up_proj"]) == [
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["model.lm_head"], "names no linear layer of a LlamaForCausalLM"),
        (["embed_tokens"], "is a Embedding, and only linear layers"),
        (["mlp"], "is a LlamaMLP, and only linear layers"),
        (["q_proj", "query"], '"query" names no linear layer of a LlamaForCausalLM; use down_proj, '),
    ],
)
def test_a_target_that_cannot_have_an_adapter_is_refused_before_the_weights_are_read(
    folder: Path, names: list[str], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=r"learner\.lora\.target_modules") as caught:
        check_model(folder, settings(target_modules=names))
    assert reason in caught.value.message


def test_a_model_without_linear_layers_is_refused() -> None:
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=4))
    with pytest.raises(InvalidArgument, match="GPT2LMHeadModel"):
        find_targets(lm, ["all-linear"])


def test_a_rank_above_the_sizes_of_a_layer_is_that_rank(folder: Path) -> None:
    policy = load_policy(folder, settings(rank=100))
    shapes = {name: tuple(tensor.shape) for name, tensor in whole_adapters(list_weights(policy.lm), is_sharded=False)}
    assert shapes["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] == (100, 64)


def test_the_output_layer_is_refused_also_under_another_name(folder: Path) -> None:
    lm = load_whole(folder, torch.float32)
    lm.set_output_embeddings(None)
    lm.embed_out = torch.nn.Linear(64, 260)
    lm.get_output_embeddings = lambda: lm.embed_out
    with pytest.raises(InvalidArgument, match="is the output layer"):
        find_targets(lm, ["embed_out"])


def test_only_adapters_are_trained_and_they_are_float32_over_a_bfloat16_model(folder: Path) -> None:
    lm = adapted(folder, dtype=torch.bfloat16)
    assert all(".lora_" in name and p.dtype == torch.float32 for name, p in trained(lm).items())
    assert len(trained(lm)) == 2 * 14
    assert {weight.parameter.dtype for weight in list_weights(lm)} == {torch.bfloat16}


def test_the_tensors_keep_their_names_shapes_and_order(folder: Path) -> None:
    before = [(name, tuple(p.shape)) for name, p in load_whole(folder, torch.float32).named_parameters()]
    assert [(weight.name, weight.shape) for weight in list_weights(adapted(folder))] == before


def test_adapters_of_one_seed_are_equal_whatever_was_drawn_before(folder: Path) -> None:
    torch.manual_seed(1)
    first, other = trained(adapted(folder, seed=3)), trained(adapted(folder, seed=4))
    torch.manual_seed(2)
    again = trained(adapted(folder, seed=3, dtype=torch.bfloat16))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_adapters_change_no_log_probability(folder: Path, dtype: str) -> None:
    config = LearnerConfig.model_validate({"compute_dtype": dtype, "lora": {"rank": 4}})
    policy = load_policy(folder, config)
    with torch.no_grad():
        with_adapters, _ = policy(ROW, 1.0)
        with switched_off([layer for _, layer in adapted_layers(policy.lm)]):
            without, _ = policy(ROW, 1.0)
    assert torch.equal(with_adapters, without)


@pytest.mark.parametrize("rslora", [False, True])
def test_layer_and_adapter_compute_what_the_merged_weight_does(folder: Path, rslora: bool) -> None:
    policy = load_policy(folder, settings(rslora=rslora))
    disturb(policy.lm)
    merged = dict(whole_weights(list_weights(policy.lm), torch.float32, is_sharded=False))
    other = load_policy(folder, LearnerConfig(compute_dtype="float32"))
    missing, unexpected = other.lm.load_state_dict(merged, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "the head is tied"
    with torch.no_grad():
        (first, _), (second, _) = policy(ROW, 1.0), other(ROW, 1.0)
        with switched_off([layer for _, layer in adapted_layers(policy.lm)]):
            without, _ = policy(ROW, 1.0)
    difference, moved = float((first - second).abs().max()), float((first - without).abs().mean())
    assert difference < 1e-5 and moved > 0.01, f"largest difference {difference:.2e}, moved by {moved:.3f}"


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_a_4_bit_model_and_its_adapters_compute_what_the_merged_weights_do(folder: Path, kind: Quantization) -> None:
    config = settings(quantization=kind)
    policy = load_policy(folder, config, load=partial(load_whole, quantization=kind))
    disturb(policy.lm)
    weights = list_weights(policy.lm)
    whole = load_whole(folder, torch.float32)
    assert [(weight.name, weight.shape) for weight in weights] == [
        (n, tuple(p.shape)) for n, p in whole.named_parameters()
    ]
    stored = sum(weight.parameter.numel() * weight.parameter.itemsize for weight in weights if weight.adapter)
    full = sum(4 * math.prod(weight.shape) for weight in weights if weight.adapter)
    assert stored * 8 == full, f"{stored} bytes of codes for {full} bytes of float32"
    merged = dict(whole_weights(weights, torch.float32, is_sharded=False))
    other = load_policy(folder, LearnerConfig(compute_dtype="float32"))
    other.lm.load_state_dict(merged, strict=False)
    with torch.no_grad():
        (first, _), (second, _) = policy(ROW, 1.0), other(ROW, 1.0)
    assert float((first - second).abs().max()) < 1e-4, f"largest difference {float((first - second).abs().max()):.2e}"
    logprobs, _ = policy(ROW, 1.0)
    logprobs.sum().backward()
    assert all(parameter.grad is not None for parameter in trained(policy.lm).values())


def test_a_4_bit_model_keeps_the_output_layer_that_log_probabilities_are_computed_from(tmp_path: Path) -> None:
    lm = load_whole(make_tiny_model(tmp_path, tie_embeddings=False), torch.float32, quantization="nf4")
    assert type(lm.get_output_embeddings()) is torch.nn.Linear
    assert lm.get_output_embeddings().weight.dtype == torch.float32


def test_peft_computes_the_same_with_the_same_matrices(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder, settings(rslora=True, alpha=8))
    disturb(policy.lm)
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder),
        PeftConfig(r=4, lora_alpha=8, use_rslora=True, target_modules="all-linear"),
    )
    own = dict(whole_adapters(list_weights(policy.lm), is_sharded=False))
    parameters = {name.replace(".default.", "."): p for name, p in theirs.named_parameters() if "lora_" in name}
    assert own.keys() == parameters.keys()
    tokens = torch.from_numpy(make_groups()[0].prompt_token_ids).long()
    with torch.no_grad():
        for name, tensor in own.items():
            parameters[name].copy_(tensor)
        logits = theirs(tokens[None]).logits[0, :-1]
        ours, _ = policy(sequence_row([tokens.numpy()]), 1.0)
    expected = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None]).squeeze(-1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_adapters_train_on_after_they_were_off(folder: Path) -> None:
    policy = load_policy(folder, settings())
    before = trained(policy.lm).keys()
    with pytest.raises(RuntimeError, match="within"), switched_off([layer for _, layer in adapted_layers(policy.lm)]):
        raise RuntimeError("within")
    assert trained(policy.lm).keys() == before
    logprobs, _ = policy(ROW, 1.0)
    logprobs.sum().backward()
    assert all(p.grad is not None for p in trained(policy.lm).values())
    assert all(weight.parameter.grad is None for weight in list_weights(policy.lm))


def test_dropout_is_off_where_log_probabilities_are_only_read(folder: Path) -> None:
    policy = load_policy(folder, settings(dropout=0.5)).train()
    disturb(policy.lm)
    with torch.no_grad():
        first, again = policy(ROW, 1.0)[0], policy(ROW, 1.0)[0]
    assert torch.equal(first, again)
    noisy, other = policy(ROW, 1.0)[0], policy(ROW, 1.0)[0]
    assert not torch.equal(noisy, other), "a forward pass with a gradient drops inputs"
    with torch.no_grad():
        assert torch.equal(policy(ROW, 1.0)[0], first)


def test_adapters_that_would_reach_the_experts_of_a_mixture_are_refused_and_others_are_not(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "glm4-moe")
    lm = load_whole(source, torch.float32)
    with pytest.raises(InvalidArgument, match=r"learner\.lora\.target_modules: .*model\.layers\.1\.mlp\.experts"):
        add_adapters(lm, LoraConfig(rank=4), seed=0)
    lm = load_whole(source, torch.float32)
    add_adapters(lm, LoraConfig(rank=4, target_modules=["q_proj", "o_proj"]), seed=0)
    assert len(list(adapted_layers(lm))) == 4
