"""Tests of what counts as a thought, and what as an answer."""

import pytest

from shoal.chat_templates.thoughts import MARKS, opened_thought, thoughts, without_thoughts


@pytest.mark.parametrize(("opening", "closing"), MARKS.items())
def test_every_kind_of_mark_begins_and_ends_a_thought(opening: str, closing: str) -> None:
    assert without_thoughts(f"{opening}\nhm, 7\n{closing}\n\n8") == "8"
    assert without_thoughts(f"{opening}\nhm, 7") == "", "an unfinished thought has no answer"
    assert without_thoughts(f"hm, 7{closing}8") == "8", "the prompt had begun the thought"
    assert opened_thought(f"Why?\n{opening}\n") == opening
    assert opened_thought(f"Why?\n{opening}\n\n{closing}\n\n") == ""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("8", "8"),
        (" 8\n", " 8\n"),
        ("", ""),
        ("<think></think>", ""),
        ("<think>a</think>8<think>b</think>", "8"),
        ("<think>a</think> 8 <think>b", "8"),
        ("It is 8. <think>a</think> So it is.", "It is 8.\nSo it is."),
        ("<think>a</think>one<think>b</think> two <think>c</think>three", "one\ntwo\nthree"),
        ("3<think>a</think>5", "3\n5"),
        ("<think>a<think>b</think>8", "8"),
        ("<think>a<think>b</think>7</think>8", "8"),
        ("<think>a</think>7</think>8", "8"),
        ("<think>a<reasoning>b</reasoning>7</think>8", "8"),
        ("<think>a</thinking>7", ""),
        ("<think>7</answer><answer>7", ""),
        ("<THINK>7</Think>8", "8"),
        ("[think]7[/think]8", "[think]7[/think]8"),
        ("<think>7</think", ""),
        ("<thinker>8", "<thinker>8"),
        ("I think 8", "I think 8"),
        ("<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>8", "8"),
        ("<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>commentary<|message|>7", ""),
        ("<|channel>thought\n<channel|>8", "8"),
        # A mark in quotation marks means nothing outside of thoughts.
        ("Write `<think>` first, 8", "Write `<think>` first, 8"),
        ('print(text.split("</think>")[1])', 'print(text.split("</think>")[1])'),
        ("the mark '<think>' and 8", "the mark '<think>' and 8"),
        ("<think>I end with `</think>` 8", "` 8"),
        ("```\nhm\n```</think>```json\n{}\n```", "```json\n{}\n```"),
        ("`<think>7", "`"),
    ],
)
def test_the_answer_is_what_stands_outside_of_thoughts(text: str, answer: str) -> None:
    assert without_thoughts(text) == answer


def test_the_places_of_thoughts_are_known() -> None:
    text = "a<think>b</think>c[THINK]d"
    assert [text[start:end] for start, end in thoughts(text)] == ["<think>b</think>", "[THINK]d"]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("Assistant: <think>", "<think>"),
        ("<|assistant|>\n<think>\n", "<think>"),
        ("Think between <think> and </think>.\nAssistant:", ""),
        ("", ""),
    ],
)
def test_a_prompt_opens_a_thought_if_it_ends_in_one(prompt: str, opened: str) -> None:
    assert opened_thought(prompt) == opened
