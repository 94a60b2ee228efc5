"""Chat templates are programs that come with models: they end, in bounded time and memory."""

import multiprocessing
import time
from collections.abc import Sequence

import pytest

from shoal.data import rendering
from shoal.data.conversation import Conversation
from shoal.data.rendering import render
from shoal.errors import InvalidArgument
from shoal.conversation import ChatMessage
from tests.support.tiny_model import make_tokenizer

PATIENCE_S = 60.0
"""Far less than what the templates below would need, far more than their refusal needs on a busy machine."""


def conversations(*contents: str) -> list[Conversation]:
    return [
        Conversation(where=f"rows.jsonl:{number}", messages=(ChatMessage("user", content),), ground_truths=())
        for number, content in enumerate(contents, start=1)
    ]


def rendered(template: str, rows: Sequence[Conversation]) -> list[str]:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return render(rows, tokenizer, {})


def refusal(template: str) -> str:
    """Returns how a template is refused that is well on the first row alone."""
    hostile = "{% if messages[0].content == 'now' %}" + template + "{% endif %}"
    began = time.monotonic()
    with pytest.raises(InvalidArgument) as caught:
        rendered(hostile, conversations("not yet", "now", "not reached"))
    assert time.monotonic() - began < PATIENCE_S, f"refused only after {time.monotonic() - began:.0f} s: {template}"
    assert not multiprocessing.active_children(), "a process is left"
    assert caught.value.message.startswith("rows.jsonl:2: the chat template (model.chat_template, else"), caught.value
    return caught.value.message


def test_texts_come_in_the_order_of_the_rows() -> None:
    assert rendered("<{{ messages[0].content }}>", conversations("a", "\ud800", "ü")) == ["<a>", "<\ud800>", "<ü>"]
    assert rendered("anything", []) == []


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", id="loops"),
        pytest.param("{% set n = 9 ** (9 ** (messages | length + 8)) %}", id="one-operation"),
    ],
)
def test_a_template_that_does_not_end_is_refused_with_its_row(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_FIXED_S", 1.0)
    assert "does not end: 1 s are over for 3 rows" in refusal(template)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ messages[0].content * 10 ** 10 }}", id="one-operation"),
        pytest.param("{{ '{:>9999999999}'.format(messages[0].content) }}", id="format"),
        pytest.param(
            "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
            id="doubled",
        ),
    ],
)
def test_a_template_that_takes_all_memory_is_refused_with_its_row(template: str) -> None:
    assert "takes more than 1.0 GiB of memory" in refusal(template)


def test_a_text_out_of_all_proportion_is_refused() -> None:
    assert "makes 3000000 characters of 3" in refusal("{{ messages[0].content * 1000000 }}")


def test_a_range_that_is_too_long_is_refused() -> None:
    assert "refuses the messages: Range too big" in refusal("{% for i in range(10 ** 12) %}{% endfor %}")


def test_a_template_that_crashes_its_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_limit", lambda within_s: 1 / 0)
    with pytest.raises(InvalidArgument, match=r"^rows\.jsonl:1: the chat template .* ends the process"):
        rendered("anything", conversations("a"))
