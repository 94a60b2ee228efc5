"""Names of adapted layers: what they mean, and what a refusal says."""

import pytest

from shoal.config.tables.lora import LoraConfig
from shoal.errors import InvalidArgument
from shoal.models.adapter_targets import choose_targets, num_adapter_weights

LAYERS = {
    "model.layers.0.self_attn.q_proj": (8, 4),
    "model.layers.0.mlp.up_proj": (16, 4),
    "model.layers.1.self_attn.q_proj": (8, 4),
    "model.layers.1.mlp.up_proj": (16, 4),
}


def test_a_refusal_names_every_wrong_name_what_may_be_meant_and_what_there_is() -> None:
    names = ["q_pro", "q_proj", "attn.q_proj", "model.layers.7.mlp.up_proj", "embed"]
    with pytest.raises(InvalidArgument) as caught:
        choose_targets(names, LAYERS, {"model.embed": "is no layer of that kind"}, model="Llama")
    reason = "names no linear layer of a Llama (did you mean"
    for part in (
        f'learner.lora.target_modules: "q_pro" {reason} q_proj or up_proj?), and "attn.q_proj" {reason} ',
        f'"model.layers.7.mlp.up_proj" {reason} model.layers.1.mlp.up_proj or model.layers.0.mlp.up_proj or ',
        ', and "embed" is no layer of that kind; use q_proj, up_proj, or ["all-linear"]',
    ):
        assert part in caught.value.message, caught.value.message
    assert '"q_proj"' not in caught.value.message


@pytest.mark.parametrize(
    ("names", "num_weights"),
    [
        (["all-linear"], 3 * (2 * 12 + 2 * 20)),
        (["q_proj"], 3 * 2 * 12),
        (["mlp.up_proj"], 3 * 2 * 20),
        (["model.layers.1.mlp.up_proj"], 3 * 20),
    ],
)
def test_the_adapters_of_the_named_layers_are_counted(names: list[str], num_weights: int) -> None:
    lora = LoraConfig(rank=3, target_modules=names)
    assert num_adapter_weights(lora, LAYERS) == num_weights


def test_adapters_of_an_unknown_layer_are_not_counted_as_none() -> None:
    with pytest.raises(InvalidArgument, match='"my_up_proj" '):
        num_adapter_weights(LoraConfig(rank=3, target_modules=["my_up_proj"]), LAYERS)
