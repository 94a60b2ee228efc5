"""The chat template of a reward model, a program that comes with it, is applied within bounds of time and memory."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.chat_templates import rendering
from shoal.chat_templates.rendering import Unrendered
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument
from shoal.models.reward_model import describe_reward_model, rendered
from tests.support.tiny_model import make_tokenizer

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reward model without weights."""
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


def test_a_conversation_that_the_template_cannot_take_costs_no_other_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    render = rendering.BoundedTemplate.render

    def impatient(self: rendering.BoundedTemplate, dialogues: Sequence[rendering.Dialogue]) -> Any:
        """Waits for the one that does not end no longer than a second: the others may have a process to start."""
        with monkeypatch.context() as patch:
            if dialogues[0].messages[0]["content"] == "stay":
                patch.setattr(rendering, "_FIXED_S", 1.0)
            return render(self, dialogues)

    monkeypatch.setattr(rendering.BoundedTemplate, "render", impatient)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% set word = messages[0].content %}"
        "{% if word == 'refuse' %}{{ raise_exception('no') }}{% elif word == 'grow' %}{{ word * 10 ** 10 }}"
        "{% elif word == 'stay' %}" + ENDLESS + "{% endif %}<{{ word }}>"
    )
    words = ["a", "refuse", "b", "grow", "stay", "c"]
    texts = rendered(tokenizer, [[{"role": "user", "content": word}] for word in words])
    assert [text for text in texts if isinstance(text, str)] == ["<a>", "<b>", "<c>"]
    whys = [text.why for text in texts if isinstance(text, Unrendered)]
    assert ["refuses" in whys[0], " 1.0 GiB " in whys[1], "not end" in whys[2], len(whys)] == [True, True, True, 3], (
        whys
    )
