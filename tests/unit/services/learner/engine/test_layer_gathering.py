"""The layers that ZeRO stage 3 gathers as wholes."""

from typing import Any

import pytest
import torch
from deepspeed.utils import z3_leaf_module
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from services.learner.engine.layer_gathering import gather_by_layer
from services.learner.model.adapters import add_adapters
from services.learner.model.freezing import freeze
from shoal.config.tables.lora import LoraConfig

LAYERS = 3


def small_llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=320,
            intermediate_size=640,
            num_hidden_layers=LAYERS,
            num_attention_heads=10,
        )
    )


def marked(layers: Any) -> list[bool]:
    return [z3_leaf_module(layer) for layer in layers]


@pytest.mark.parametrize(
    ("frozen", "first"),
    [
        ([], None),
        (["model.embed_tokens"], 0),
        (["model.embed_tokens", "model.layers.0."], 1),
        (["model.layers.0."], None),
    ],
    ids=["nothing", "embedding", "embedding and first layer", "first layer"],
)
def test_every_layer_is_a_unit_and_the_first_trained_one_has_a_gradient_of_its_input(
    frozen: list[str], first: int | None
) -> None:
    lm = small_llama()
    if frozen:
        freeze(lm, frozen)
    gather_by_layer(lm)
    assert marked(lm.model.layers) == [True, True, True]
    inputs = inputs_of_layers(lm)
    assert [hidden.is_leaf and hidden.requires_grad for hidden in inputs] == [layer == first for layer in range(LAYERS)]


def inputs_of_layers(lm: Any) -> list[torch.Tensor]:
    inputs: list[torch.Tensor] = []
    for layer in lm.model.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    lm(torch.arange(4)[None])
    return inputs


def test_with_adapters_all_layers_are_units() -> None:
    lm = small_llama()
    add_adapters(lm, LoraConfig(rank=4), seed=0)
    gather_by_layer(lm)
    assert marked(lm.model.layers) == [True, True, True]
    assert [hidden.is_leaf for hidden in inputs_of_layers(lm)] == [True, False, False]


def test_blocks_of_gpt2_are_units_too() -> None:
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=64, n_layer=2, n_head=2))
    assert "stage3_prefetch_bucket_size" not in gather_by_layer(lm), "all parameters are small and stay whole"
    assert marked(lm.transformer.h) == [True, True]


def test_the_next_layer_is_prefetched_whole_and_no_more() -> None:
    lm = small_llama()
    layer = lm.model.layers[0]
    matrices = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)
    assert gather_by_layer(lm)["stage3_prefetch_bucket_size"] == matrices
