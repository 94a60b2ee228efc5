"""Chat templates by name, by path and as text."""

import inspect
from pathlib import Path

import pytest

from shoal.chat_templates import NAMES, template_text
from shoal.config import load_config
from shoal.config.tables.model import ModelConfig
from shoal.errors import InvalidArgument
from tests.support.tiny_model import IM_END, make_tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3?"},
]


def _prompt(name: str, messages: list[dict[str, str]]) -> str:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template_text(name)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4"
            "<|im_end|>\n<|im_start|>user\nAnd 3?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "tulu",
            f"<|system|>\nBe brief.\n<|user|>\n2 + 2?\n<|assistant|>\n4{IM_END}\n<|user|>\nAnd 3?\n<|assistant|>\n",
        ),
        (
            "tulu_thinker",
            f"<|system|>\nBe brief.\n<|user|>\n2 + 2?\n<|assistant|>\n4{IM_END}\n<|user|>\nAnd 3?\n<|assistant|>\n"
            "<think>",
        ),
        (
            "zephyr",
            f"<|system|>\nBe brief.{IM_END}\n<|user|>\n2 + 2?{IM_END}\n<|assistant|>\n4{IM_END}\n<|user|>\nAnd 3?"
            f"{IM_END}\n<|assistant|>\n",
        ),
        ("simple_chat", "System: Be brief.\n\nUser: 2 + 2?\n\nAssistant: 4\n\nUser: And 3?"),
        ("simple", "Be brief.\n2 + 2?\n4\nAnd 3?"),
        ("simple_space", "Be brief. 2 + 2? 4 And 3?"),
    ],
)
def test_a_named_template_writes_these_turns(name: str, expected: str) -> None:
    assert _prompt(name, TALK) == expected


@pytest.mark.parametrize(
    ("name", "asked_for", "turns"),
    [
        (
            "r1_zero",
            ("<think>", "</think>", "<answer>", "</answer>"),
            "System: Be brief.\n\n\nUser: 2 + 2?\n\n\nAssistant: 4\n\n\nUser: And 3?\nAssistant: <think>",
        ),
        (
            "r1_zero_plain",
            ("<think>", "</think>", "<answer>", "</answer>"),
            "System: Be brief.\n\n\nUser: 2 + 2?\n\n\nAssistant: 4\n\n\nUser: And 3?\nAssistant:",
        ),
        (
            "tulu_r1",
            ("<think>", "</think>", "<answer>", "</answer>"),
            f"<|system|>\nBe brief.\n<|user|>\n2 + 2?\n<|assistant|>\n4{IM_END}\n<|user|>\nAnd 3?\n"
            "<|assistant|>\n<think>",
        ),
        ("answer_line", ("Answer:",), 'Be brief.\n\n\n2 + 2?\n\n\n4\n\n\nAnd 3?\n\n{"Answer:"}'),
        ("code_block", ("```python",), "Be brief.\n\n\n2 + 2?\n\n\n4\n\n\nAnd 3?\n\n{```python}"),
    ],
)
def test_the_instruction_comes_before_the_turns(name: str, asked_for: tuple[str, ...], turns: str) -> None:
    instruction, _, rest = _prompt(name, TALK).partition("\n\n")
    assert all(word in instruction for word in asked_for), instruction
    if "{" in turns:
        # A reminder of it closes the prompt.
        turns, _, reminded = turns.partition("{")
        assert rest.startswith(turns + "Do not forget") and reminded[:-1] in rest[len(turns) :]
    else:
        assert rest == turns


def test_earlier_thoughts_are_left_out_and_the_question_asks_for_a_boxed_result() -> None:
    thought = [TALK[1], {"role": "assistant", "content": "<think>two twos</think> 4"}, TALK[3]]
    assert "two twos" not in _prompt("tulu_r1", thought) and f"<|assistant|>\n 4{IM_END}\n" in _prompt(
        "tulu_r1", thought
    )
    rest = _prompt("r1_zero_boxed", TALK[1:2]).partition("\n\n")[2]
    assert rest.startswith("User: ") and "\\boxed{}" in rest and rest.endswith(": 2 + 2?\nAssistant: <think>")


def test_no_template_ends_a_prompt_with_the_end_of_a_sequence() -> None:
    for name in set(NAMES) - {"chatml"}:
        assert not _prompt(name, TALK).rstrip().endswith(IM_END), name


def test_every_name_is_documented_where_it_is_set() -> None:
    source = inspect.getsource(ModelConfig)
    assert len(NAMES) == 13
    assert [name for name in NAMES if name not in source] == []


def test_a_path_in_a_configuration_file_becomes_the_files_text(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[-1].content }} =", encoding="utf-8")
    file = tmp_path / "run.toml"
    file.write_text("[model]\npath = 'm'\n[data]\nsources = [{ task = 'arithmetic' }]\n", encoding="utf-8")
    config = load_config(file, [f"model.chat_template={template}"])
    assert config.model.chat_template == "{{ messages[-1].content }} ="
    assert load_config(file, ["model.chat_template=tulu"]).model.chat_template == "tulu"


def test_a_file_without_jinja_is_no_chat_template(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"notes\.txt "):
        template_text(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("given", ["tulo", "no/such/file.jinja", ""])
def test_a_text_that_is_neither_name_nor_file_nor_jinja_is_refused_with_the_names(given: str) -> None:
    with pytest.raises(InvalidArgument, match=r"model\.chat_template: .*chatml, code_block, r1_zero"):
        template_text(given)
