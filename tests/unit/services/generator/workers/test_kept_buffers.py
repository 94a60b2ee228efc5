import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")


def test_constants_beside_weights_survive_a_load_and_buffers_that_arrive_are_replaced() -> None:
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    from services.generator.workers.kept_buffers import keep_buffers

    keep_buffers()
    layer = torch.nn.Module()
    layer.alpha = torch.nn.Parameter(torch.tensor([1.0]))
    layer.register_buffer("beta", torch.tensor([0.5, 0.25]))
    layer.register_buffer("scale", torch.tensor([2.0]))
    record_metadata_for_reloading(layer)
    for loaded in (3.0, 4.0):
        initialize_layerwise_reload(layer)
        for name in ("alpha", "scale"):
            tensor = getattr(layer, name)
            getattr(tensor, "weight_loader", default_weight_loader)(tensor, torch.tensor([loaded]))
        finalize_layerwise_reload(layer, None)
        assert layer.alpha.item() == layer.scale.item() == loaded
        assert layer.beta.tolist() == [0.5, 0.25], "a constant has changed"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_of_xielu_are_of_the_models_type(dtype: str) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import XIELU
    from vllm.utils.torch_utils import set_default_torch_dtype

    from services.generator.workers.xielu import give_xielu_the_models_type

    give_xielu_the_models_type()
    with set_current_vllm_config(VllmConfig()), set_default_torch_dtype(getattr(torch, dtype)):
        assert {parameter.dtype for parameter in XIELU().parameters()} == {getattr(torch, dtype)}
