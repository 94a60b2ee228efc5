from shoal.weights.adapter import adapter_shapes, layer_of


def test_an_adapter_has_two_factors_for_each_layer_under_the_names_of_peft() -> None:
    shapes = adapter_shapes({"model.layers.0.mlp.up_proj": (128, 64)}, rank=4)
    assert shapes == {
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": (4, 64),
        "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight": (128, 4),
    }
    assert {layer_of(name) for name in shapes} == {"model.layers.0.mlp.up_proj"}
