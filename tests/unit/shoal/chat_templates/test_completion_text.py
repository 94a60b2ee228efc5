"""Tests of the text of completions."""

from shoal.chat_templates.completion_text import text_decoder
from shoal.chat_templates.thoughts import without_thoughts
from tests.support.tiny_model import IM_END, make_tokenizer


def test_special_tokens_are_left_out_of_the_text() -> None:
    tokenizer = make_tokenizer()
    assert text_decoder(tokenizer)(tokenizer.encode(f"<think>7</think>8{IM_END}")) == "<think>7</think>8"


def test_marks_of_thoughts_that_are_special_tokens_stay_in_the_text() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    text = text_decoder(tokenizer)(tokenizer.encode(f"[THINK]7[/THINK]8{IM_END}"))
    assert text == "[THINK]7[/THINK]8"
    assert without_thoughts(text) == "8"


def test_headers_of_channels_that_are_special_tokens_stay_in_the_text() -> None:
    tokenizer = make_tokenizer()
    names = ("channel", "message", "start", "end", "return")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    sampled = "<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>8<|return|>"
    assert without_thoughts(text_decoder(tokenizer)(tokenizer.encode(sampled))) == "8"
