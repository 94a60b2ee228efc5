"""The chat template of a reward model, a program that comes with it, is applied within bounds of time and memory."""

import json
import time
from pathlib import Path

import pytest

from shoal.chat_templates import rendering
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument
from shoal.models.reward_model import describe_reward_model
from tests.support.tiny_model import make_tokenizer

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "id2label": {"0": "score"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    make_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param(ENDLESS, "does not end", id="time"),
        pytest.param("{{ messages[0].content * 10 ** 10 }}", "takes more than 1.0 GiB of memory", id="memory"),
    ],
)
def test_a_template_without_end_is_refused_before_the_weights_are_read(
    folder: Path, template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "does not end":
        monkeypatch.setattr(rendering, "_FIXED_S", 1.0)
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match=rf"^reward\.model\.chat_template: .* {why}"):
        describe_reward_model(RewardModelConfig(path=str(folder), chat_template=template))
    assert time.monotonic() - began < PATIENCE_S, f"refused only after {time.monotonic() - began:.0f} s"
