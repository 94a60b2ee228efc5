"""Prompts that lack the beginning of the sequence or fields of the data, or have the time in them, are noted."""

from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from services.coordinator.run.checks.preflight import notes_on_prompts
from shoal.config.tables.model import ModelConfig
from shoal.conversation import ChatMessage
from shoal.rollout import Prompt
from tests.support.chat_templates import tokenizer_with
from tests.support.wordings import has_all

PLAIN = "{{ messages[0].content }}"


def notes(template: str, *, adds_bos: bool = True) -> tuple[str, ...]:
    tokenizer: Any = tokenizer_with(template)
    if adds_bos:
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    token_ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
    prompt = Prompt("a:0", token_ids, text, (), (ChatMessage("user", "hi"),))
    return notes_on_prompts(ModelConfig(path="m"), tokenizer, [prompt, prompt])


def test_prompts_without_the_beginning_of_the_sequence_are_noted_where_the_tokenizer_writes_it() -> None:
    [note] = notes(PLAIN)
    assert has_all(note, "2 of 2 prompts ", "<|im_start|>", "{{ bos_token }}"), note
    assert notes("{{ bos_token }}" + PLAIN) == ()
    assert notes(PLAIN, adds_bos=False) == ()


def test_fields_about_messages_that_no_prompt_has_are_noted_once() -> None:
    tokenizer: Any = tokenizer_with(PLAIN)
    prompt = Prompt("a:0", np.ones(1, np.int32), "hi", (), (ChatMessage("user", "hi"),))
    [note] = notes_on_prompts(ModelConfig(path="m"), tokenizer, [prompt] * 3, frozenset(("timestamp", "id")))
    assert "id, timestamp" in note, note


@pytest.mark.parametrize("place", ["{} " + PLAIN, PLAIN + " {}"])
def test_a_clock_in_the_template_is_noted(place: str) -> None:
    [note] = notes(place.format("{{ strftime_now('%d %b %Y') }}"), adds_bos=False)
    assert "strftime_now" in note
