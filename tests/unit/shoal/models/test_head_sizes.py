import pytest

from shoal.errors import InvalidArgument
from shoal.models.head_sizes import check_heads, head_sizes

transformers = pytest.importorskip("transformers")


def test_a_size_that_the_configuration_leaves_out_is_that_of_equal_parts_of_the_width() -> None:
    assert head_sizes(transformers.LlamaConfig(hidden_size=96, num_attention_heads=3)) == [32]


def test_layers_of_gemma_4_have_heads_of_two_sizes() -> None:
    """The whole configuration raises a RuntimeError where a layer's size is read from it."""
    config = transformers.Gemma4TextConfig(
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        head_dim=256,
        global_head_dim=512,
    )
    with pytest.raises(RuntimeError, match="head_dim"):
        _ = config.head_dim
    assert head_sizes(config) == [256, 512]


def test_the_sizes_of_a_multimodal_model_are_those_of_its_language_model() -> None:
    text = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 64}
    assert head_sizes(transformers.Gemma3Config(text_config=text)) == [64]


def test_heads_that_cannot_be_split_evenly_are_refused() -> None:
    check_heads(6, 3)
    with pytest.raises(InvalidArgument, match=r"sequence_parallel_size \(8\) .*\(28\).* 1, 2, 4, 7, 14, 28 "):
        check_heads(28, 8)
