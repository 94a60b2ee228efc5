"""What a chat template does is found by trying it."""

import pytest

from shoal.chat_templates import template_text
from shoal.chat_templates.probes import end_of_answer, writes_time
from shoal.chat_templates.rendering import BoundedTemplate, Dialogue
from tests.support import chat_templates as families

HARMONY = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}"
    "{% if m.role == 'assistant' and loop.last and not add_generation_prompt %}<|endoftext|>"
    "{% else %}<|im_end|>{% endif %}{% endfor %}"
)
ASKED = Dialogue([{"role": "user", "content": "hi"}], begins_turn=True)


@pytest.mark.parametrize(
    ("template", "token"),
    [
        ("chatml", "<|im_end|>"),
        ("zephyr", "<|im_end|>"),  # The end of the sequence.
        (families.QWEN_THINKING, "<|im_end|>"),
        (families.LLAMA_3, "<|eot_id|>"),
        (HARMONY, "<|endoftext|>"),
        ("{% for m in messages %}{{ m.content + '[user]' }}{% endfor %}", None),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", None),
        ("{{ raise_exception('no') }}", None),
        ("{{ messages[0].content }}", None),
        ("", None),
    ],
)
def test_the_token_that_ends_an_answer_is_the_one_behind_the_last(template: str, token: str | None) -> None:
    tokenizer = families.tokenizer_with(template_text(template) if template in ("chatml", "zephyr") else template)
    found = end_of_answer(tokenizer, {})
    assert (None if found is None else tokenizer.convert_ids_to_tokens(found)) == token


@pytest.mark.parametrize(
    ("template", "is_clock"),
    [
        ("{{ strftime_now('%d %b %Y') }}", True),
        ("{{ messages[0].content }}{{ strftime_now('%f') }}", True),
        ("{% if strftime_now is defined %}{{ messages[0].content }}{% endif %}", False),
        ("{{ [1, 2, 3, 4, 5, 6, 7, 8] | random }}", False),
    ],
)
def test_a_template_that_writes_the_time_is_told_from_others(template: str, is_clock: bool) -> None:
    assert writes_time(families.tokenizer_with(template), {}, ASKED) == is_clock


@pytest.mark.parametrize("template", ["{{ strftime_now('%H:%M:%S.%f') }}", "{{ range(10 ** 5) | random }}"])
def test_a_text_follows_from_the_time_that_the_template_is_told(template: str) -> None:
    tokenizer = families.tokenizer_with(template)
    texts = []
    for time_s in (1e9, 1e9, None):
        bounded = BoundedTemplate(tokenizer, {}, time_s)
        texts.append(bounded.render([ASKED, ASKED]))
        bounded.close()
    first, second, of_now = texts
    assert first == second and first[0] == first[1] and of_now[0] == of_now[1], texts
