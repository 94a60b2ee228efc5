"""Chat templates are programs that come with models: they end, in bounded time and memory."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.chat_templates import NAMES, rendering, template_text
from shoal.conversation import ChatMessage
from shoal.data.conversation import Conversation
from shoal.data.rendering import render
from shoal.errors import InvalidArgument
from tests.support.tiny_model import make_tokenizer


def conversations(*contents: str) -> list[Conversation]:
    return [
        Conversation(where=f"rows.jsonl:{number}", messages=(ChatMessage("user", content),), ground_truths=())
        for number, content in enumerate(contents, start=1)
    ]


def rendered(template: str, rows: Sequence[Conversation]) -> list[str]:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return render(rows, tokenizer, {})


def test_a_tokenizer_without_a_template_is_refused_with_the_name_of_one() -> None:
    with pytest.raises(InvalidArgument, match=r'^model\.chat_template: .* "chatml"'):
        rendered("", conversations("a"))


def test_texts_come_in_the_order_of_the_rows() -> None:
    assert rendered("<{{ messages[0].content }}>", conversations("a", "\ud800", "ü")) == ["<a>", "<\ud800>", "<ü>"]
    assert rendered("anything", []) == []


def test_a_row_that_is_refused_is_named_whatever_comes_behind_it() -> None:
    only_now = "{% if messages[0].content == 'now' %}{{ raise_exception('not now') }}{% endif %}"
    with pytest.raises(InvalidArgument, match=r"^rows\.jsonl:1: .*: not now$"):
        rendered(only_now, conversations("now", "later", "now"))


def test_a_template_that_ends_its_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text("import json, sys; print(json.dumps({'text': 'a'})); sys.exit(7)")
    monkeypatch.setattr(rendering, "_PROGRAM", program)
    with pytest.raises(InvalidArgument, match=r"^rows\.jsonl:2: .* exit code 7"):
        rendered("anything", conversations("a", "b"))


EVERYTHING = """{{ bos_token }}{%- for message in messages %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
{{ message | tojson }} {{ message.content | tojson(indent=1) }}{% generation %}{{ message.content }}{% endgeneration %}
{% endfor %}
{{ (strftime_now('%Y') | length) ~ eos_token ~ thinking ~ (tools is none) ~ (documents is none) }}
{{- add_generation_prompt }}
"""


@pytest.mark.parametrize("template", [*NAMES, EVERYTHING])
def test_a_text_is_that_of_the_tokenizers_own_chat_template(template: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template_text(template)
    turns = [ChatMessage("system", "Be <brief>."), ChatMessage("user", "2 + 2?"), ChatMessage("assistant", "4\n"),
             ChatMessage("user", "And “3”?")]  # fmt: skip
    conversation = Conversation(where="", messages=tuple(turns), ground_truths=())
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, thinking=True)
    assert render([conversation], tokenizer, {"thinking": True}) == [own]
