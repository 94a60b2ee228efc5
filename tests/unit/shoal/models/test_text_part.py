import pytest

torch = pytest.importorskip("torch")

from shoal.models.text_part import auto_class, keep_text_part  # noqa: E402
from tests.support.tiny_families import FAMILIES, READERS  # noqa: E402


@pytest.mark.parametrize("family", READERS)
def test_only_the_decoder_and_the_output_layer_keep_parameters(family: str) -> None:
    config = READERS[family]()
    with torch.device("meta"):
        lm = auto_class(config).from_config(config)
    before = {name for name, _ in lm.named_parameters()}
    after = {name for name, _ in keep_text_part(lm).named_parameters()}
    assert after == {name for name in before if name.startswith(("model.language_model.", "lm_head."))} < before


@pytest.mark.parametrize("family", ["llama", "qwen3.5", "gemma4-e"])
def test_a_text_model_keeps_all_its_modules(family: str) -> None:
    config = FAMILIES[family]()
    with torch.device("meta"):
        lm = auto_class(config).from_config(config)
    before = [name for name, _ in lm.named_modules()]
    assert [name for name, _ in keep_text_part(lm).named_modules()] == before
