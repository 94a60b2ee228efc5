"""The end of a prompt that an episode continues."""

import pytest

from shoal.chat_templates.template_messages import without_last_end

BEGUN = "<|user|>\nK2?\n\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("text", "continued"),
    [
        ("<|user|>\nK2?\n\n<|endoftext|>", "<|user|>\nK2?\n\n"),
        ("<|user|>\nK2?<|end|>\n<|endoftext|>\n", "<|user|>\nK2?<|end|>\n"),
        ("<|user|>\nK2?<|end|>\n\n", "<|user|>\nK2?<|end|>\n\n"),
        ("<|user|>\nWhat is <|endoftext|>?\n", "<|user|>\nWhat is <|endoftext|>?\n"),
        ("<|user|>\nK2?\n\n", "<|user|>\nK2?\n\n"),
    ],
)
def test_a_prompt_loses_only_the_end_of_a_sequence(text: str, continued: str) -> None:
    assert without_last_end(text, BEGUN, "<|endoftext|>") == continued
    assert without_last_end(text, BEGUN, None) == text
