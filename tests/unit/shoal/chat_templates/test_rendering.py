"""A chat template is applied in a process of its own, with limits, again and again."""

import gc
import os
import signal
import time
from typing import Any

import psutil
import pytest

from shoal.chat_templates import rendering
from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from shoal.errors import InvalidArgument
from tests.support.tiny_model import make_tokenizer
from tests.support.wordings import numbers_in

PATIENCE_S = 60.0
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONE_OPERATION = "{% set n = 9 ** (9 ** (messages | length + 8)) %}"


def bounded(template: Any, **variables: Any) -> BoundedTemplate:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return BoundedTemplate(tokenizer, variables)


def says(content: str, tools: list[dict[str, Any]] | None = None) -> Dialogue:
    return Dialogue([{"role": "user", "content": content}], begins_turn=True, tools=tools)


def process_of(template: BoundedTemplate) -> psutil.Process:
    assert template._process is not None
    return psutil.Process(template._process.pid)


def test_one_process_applies_a_template_again_and_again() -> None:
    template = bounded("<{{ messages[0].content }}>{{ word }}", word="!")
    assert template.render([says("a")]) == ["<a>!"]
    process = process_of(template)
    assert template.render([says(str(number)) for number in range(200)]) == [f"<{number}>!" for number in range(200)]
    assert process_of(template) == process
    template.close()
    assert not process.is_running(), "the process has not ended"
    assert template.render([says("again")]) == ["<again>!"]


def test_several_templates_without_a_default_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"^model\.chat_template: .* tool_use, rag"):
        bounded({"tool_use": "a", "rag": "b"})
    assert bounded({"default": "a", "rag": "b"}).render([says("hi")]) == ["a"]


def test_texts_longer_than_any_pipe_come_whole() -> None:
    template = bounded("{{ messages[0].content }}")
    texts = [letter * 300_000 for letter in "abcdefgh"]
    assert template.render(list(map(says, texts))) == texts


def test_a_template_gets_the_tools_and_the_one_for_tools_is_chosen() -> None:
    template = bounded({"default": "{{ tools is none }}", "tool_use": "{{ tools[0].name }}"})
    assert template.render([says("a"), says("a", [{"name": "add"}])]) == ["True", "add"]


@pytest.mark.parametrize("hostile", [LOOPS, ONE_OPERATION])
def test_a_template_that_does_not_end_is_ended_and_the_next_text_comes_from_another_process(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = bounded("{% if messages[0].content == 'now' %}" + hostile + "{% endif %}well")
    assert template.render([says("not yet")]) == ["well"]
    process, began = process_of(template), time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(rendering, "_FIXED_S", 0.2)
        outcomes = template.render([says("now"), says("not reached")])
    [outcome] = outcomes
    assert isinstance(outcome, Unrendered) and "0.4 s" in outcome.why
    assert time.monotonic() - began < PATIENCE_S and not process.is_running()
    assert template.render([says("later")]) == ["well"]


def test_a_template_that_nobody_waits_for_ends_by_itself() -> None:
    template = bounded(LOOPS)
    template._send([says("a")], cpu_s=1)
    assert template._process is not None
    assert template._process.wait(PATIENCE_S) == -signal.SIGXCPU


@pytest.mark.parametrize(
    "grown",
    [
        "{{ messages[0].content * 10 ** 10 }}",
        "{{ '{:>9999999999}'.format(messages[0].content) }}",
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    ],
    ids=["one operation", "format", "doubled"],
)
def test_a_template_that_takes_all_memory_is_ended(grown: str) -> None:
    template = bounded("{% if messages[0].content == 'now' %}" + grown + "{% endif %}well")
    outcome = template.render([says("a"), says("now")])[1]
    assert isinstance(outcome, Unrendered) and " 1.0 GiB " in outcome.why
    assert template.render([says("a")]) == ["well"]


def test_a_text_out_of_all_proportion_does_not_reach_this_process() -> None:
    template = bounded("{{ messages[0].content * 1000000 }}")
    [outcome] = template.render([says("abc")])
    assert isinstance(outcome, Unrendered) and numbers_in(outcome.why) == ["3000000", "1048624"]
    assert template.render([says("a")]) == ["a" * 1_000_000]


def test_what_a_template_refuses_is_said_in_its_words_and_it_goes_on() -> None:
    template = bounded("{% if messages[0].content == 'b' %}{{ raise_exception('no b') }}{% endif %}well")
    refused = Unrendered("refuses the messages: no b", "no b")
    assert template.render([says("a"), says("b"), says("c")]) == ["well", refused, "well"]
    [outcome] = bounded("{% for i in range(10 ** 12) %}{% endfor %}").render([says("a")])
    assert isinstance(outcome, Unrendered) and "Range too big" in outcome.why


def test_the_process_ends_with_what_uses_it_and_by_no_signal_for_all() -> None:
    template = bounded("well")
    template.render([says("a")])
    process = process_of(template)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
    assert template.render([says("b")]) == ["well"] and process.is_running()
    del template
    gc.collect()
    assert not process.is_running(), "the process has not ended"
