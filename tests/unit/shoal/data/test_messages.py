"""What messages say in fields beside role and content reaches the prompt, or is refused by name."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoal.config.tables.data import SourceConfig
from shoal.config.tables.reward import RewardConfig
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.data.conversation import Conversation, conversation_of
from shoal.data.files import read_dataset, read_files
from shoal.data.rendering import render
from shoal.data.rows import Row
from shoal.errors import InvalidArgument
from tests.support import chat_templates as families

CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}
ASKED = {"role": "user", "content": "1 + 1?"}
CALLED = [
    ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "call-1", "name": "add"},
    {"role": "user", "content": "And 3?"},
]


def read(messages: Any, **row: Any) -> Conversation:
    values = {"messages": messages, "ground_truth": "2", "dataset": "gsm8k"}
    return conversation_of(Row(6, "rows.jsonl:7", values, **row), SourceConfig(path="-"), None, RewardConfig())


def refusal(messages: Any, **row: Any) -> str:
    with pytest.raises(InvalidArgument) as error:
        read(messages, **row)
    assert error.value.message.startswith("rows.jsonl:7: messages"), error.value.message
    return error.value.message


def test_calls_and_results_reach_the_prompt() -> None:
    conversation = read(CALLED)
    assert conversation.messages[1].tool_calls == (
        ToolCall(
            "call-1",
            "add",
            '{"a": 1, "b": null}',
            ToolCallStatus.OK,
            raw := '{"name": "add", "arguments": {"a": 1, "b": null}}',
        ),
    )
    assert conversation.messages[2] == ChatMessage("tool", "2", tool_call_id="call-1", name="add")
    [text] = render([conversation], families.tokenizer_with(families.QWEN), {})
    assert f"<tool_call>{raw}</tool_call>" in text
    assert "<tool_response>\n2\n</tool_response>" in text


@pytest.mark.parametrize(
    "calls",
    [
        [{"function": {"name": "add", "arguments": {"a": 1}}}],
        [{"name": "add", "arguments": {"a": 1}}],
        [{"id": None, "type": "function", "function": {"name": "add", "arguments": ' {"a": 1} '}}],
        json.dumps([{"name": "add", "arguments": {"a": 1}}]),
    ],
)
def test_calls_are_read_in_the_forms_of_data_sets(calls: Any) -> None:
    [_, answer, _] = read([ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, ASKED]).messages
    assert answer.content == "" and [call.arguments_json for call in answer.tool_calls] == ['{"a": 1}']


def test_two_questions_that_differ_in_a_call_alone_are_not_the_same() -> None:
    others = json.loads(json.dumps(CALLED).replace("call-1", "call-2").replace('\\"a\\": 1', '\\"a\\": 2'))
    assert read(CALLED).question != read(others).question


def test_a_template_that_writes_no_calls_is_refused_with_the_row() -> None:
    silent = families.tokenizer_with("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidArgument, match=r"^rows\.jsonl:7: .* tool_calls"):
        render([read([ASKED]), read(CALLED)], silent, {})


def test_a_template_may_take_the_arguments_as_a_text() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
        "{% if call.function.arguments is mapping %}{{ raise_exception('a text') }}{% endif %}"
        "[{{ call.function.arguments }}]{% endfor %}{% endfor %}"
    )
    [text, other] = render([read(CALLED), read([ASKED])], families.tokenizer_with(template), {})
    assert '[{"a": 1, "b": null}]' in text and other == "1 + 1?"


def test_parts_of_text_are_read_as_one_text() -> None:
    part = {"type": "text", "text": "Hello", "image": None, "index": 0}
    [message] = read([{"role": "user", "content": [part, {"type": "text", "text": ", world"}]}]).messages
    assert message.content == "Hello, world"
    as_text = json.dumps([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    assert read(as_text).messages == (ChatMessage("user", "Hi"),)


@pytest.mark.parametrize(
    ("kind", "medium"),
    [("image", "images"), ("image_url", "images"), ("input_audio", "audio"), ("video", "video"), ("Image", "images")],
)
def test_parts_that_are_no_text_are_refused_by_name(kind: str, medium: str) -> None:
    content = [{"type": kind, kind: "x.png"}, {"type": "text", "text": "What is this?"}]
    found = refusal([{"role": "user", "content": content}])
    assert repr(kind) in found and f"training on {medium} is not available" in found, found


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reasoning_content": "Let me see."}, "reasoning_content"),
        ({"thinking": "Let me see."}, "thinking"),
        ({"function_call": {"name": "add", "arguments": "{}"}}, "function_call"),
        ({"images": ["x.png"]}, "images"),
        ({"audio": {"id": "audio_1"}}, "audio"),
        ({"documents": [{"title": "A"}]}, "documents"),
        ({"tool_calls": [{"name": "add", "parameters": {"a": 1}}]}, "tool_calls[0].parameters"),
        ({"tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}, "tool_calls[0].arguments"),
        ({"tool_calls": [{"function": {"name": "add", "arguments": [1]}}]}, "tool_calls[0].arguments"),
        ({"tool_calls": [{"function": {"name": 3, "arguments": {}}}]}, "tool_calls[0]"),
        ({"tool_calls": [{"type": "code", "name": "add"}]}, "tool_calls[0]"),
        ({"tool_calls": {"name": "add"}}, "tool_calls"),
        ({"tool_call_id": 7}, "tool_call_id"),
        ({"name": ["a"]}, "name"),
        ({"content": [{"type": "text", "text": "a", "cache": {"x": "y"}}]}, "content[0].cache"),
        ({"content": [{"type": "tool_result", "content": "a"}]}, "tool_result"),
        ({"content": ["a"]}, "'a'"),
        ({"content": []}, "content"),
        ({"content": {"text": "a"}}, "content"),
    ],
)
def test_a_field_that_no_prompt_would_have_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    found = refusal([ASKED, {"role": "assistant", "content": "2", **fields}, ASKED])
    assert found.startswith("rows.jsonl:7: messages[1] ") and named in found, found


def test_messages_as_json_text_with_a_key_twice_are_refused() -> None:
    assert "'content'" in refusal('[{"role": "user", "content": "1", "content": "2"}]')
    for question in ('[{"a": 1, "a": 2}] is odd. Why?', "[1, 2]"):
        assert read(question).messages == (ChatMessage("user", question),)


def test_fields_that_say_nothing_pass() -> None:
    nothing = {"weight": 0, "train": False, "function_call": {"name": None, "arguments": None}, "images": [], "id": ""}
    assert read([ASKED | nothing]).messages == (ChatMessage("user", "1 + 1?"),)


def test_what_is_said_about_a_message_is_left_out_and_named() -> None:
    about = {"id": "m-1", "timestamp": datetime(2024, 5, 1, tzinfo=UTC), "metadata": {"tags": ["a"]}, "uuid": None}
    conversation = read([ASKED | about, {"role": "system", "content": "-", "created_at": "2024"}])
    assert conversation.messages == (ChatMessage("user", "1 + 1?"), ChatMessage("system", "-"))
    assert conversation.left_out == {"id", "timestamp", "metadata", "created_at"}
    assert read([ASKED | {"id": 7, "weight": 0.5, "metadata": {}}]).left_out == frozenset(), "they said nothing before"
    assert "source" in refusal([ASKED | {"id": "m-1", "source": "a book"}])


def test_a_template_that_reads_what_is_left_out_is_refused_with_the_row() -> None:
    of_calls = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
    of_calls += "{{ c.function.arguments['a'] }}{% endfor %}{% endfor %}"
    rows = [read([ASKED]), read([ASKED | {"id": "m-1"}]), read([CALLED[0] | {"id": "m-2"}, *CALLED[1:]])]
    assert render(rows, families.tokenizer_with(of_calls), {})[:2] == ["1 + 1?"] * 2, "the ids of calls are others"
    as_texts = of_calls.replace("{{ c.function.arguments['a'] }}", "{{ c.function.arguments + '' }}")
    assert len(render(rows, families.tokenizer_with(as_texts), {})) == 3
    of_glm = "{% for m in messages %}<|{{ m.role }}|>{{ m['metadata'] }}\n{{ m.content }}{% endfor %}"
    assert len(render(rows[:2], families.tokenizer_with(of_glm), {})) == 2
    told = replace(read([ASKED | {"metadata": "interpreter"}]), where="rows.jsonl:9")
    with pytest.raises(InvalidArgument, match=r"^rows\.jsonl:9: .* metadata "):
        render([*rows[:2], told], families.tokenizer_with(of_glm), {})


def test_nothing_of_the_reference_answer_is_read() -> None:
    answer = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": 3}
    assert read([ASKED, answer]).messages == (ChatMessage("user", "1 + 1?"),)


@pytest.mark.parametrize("column", ["images", "image", "Audio", "videos", "image_url", "img_paths", "pixel_values"])
def test_a_column_of_media_beside_the_text_is_refused_by_name(column: str) -> None:
    values = {"messages": "What is this?", "ground_truth": "2", "dataset": "gsm8k", column: ["x.png"]}
    with pytest.raises(InvalidArgument, match=rf"^rows\.jsonl:7: .*'{column}'"):
        conversation_of(Row(6, "rows.jsonl:7", values), SourceConfig(path="-"), None, RewardConfig())
    named = SourceConfig(path="-", label_columns={"seen": column})
    assert conversation_of(Row(6, "-", values), named, None, RewardConfig()).ground_truths, "it is the label"
    empty = Row(6, "-", values | {column: [None]})
    assert conversation_of(empty, SourceConfig(path="-"), None, RewardConfig()).messages


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_beside_a_prompt_that_would_not_show_them_are_refused(tmp_path: Path, as_text: bool) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    values = {"messages": "1 + 1?", "ground_truth": "2", "dataset": "gsm8k"}
    pyarrow.parquet.write_table(
        pyarrow.table({**{name: [value] for name, value in values.items()}, "tools": [json.dumps(tools)]}),
        tmp_path / "rows.parquet",
    )
    [of_table] = read_files(SourceConfig(path=str(tmp_path / "rows.parquet"))).rows
    twice = '[{"type": "function", "type": "function"}]'
    others = (json.dumps(tools), twice) if as_text else (tools,)
    for row in (of_table, *(Row(6, "rows.jsonl:7", {**values, "tools": other}) for other in others)):
        with pytest.raises(InvalidArgument, match=r"^\S*rows\.\S+( row 1)?: .*'tools'"):
            conversation_of(row, SourceConfig(path="-"), None, RewardConfig())
        assert conversation_of(row, SourceConfig(path="-", tools_column=""), None, RewardConfig()).messages
    for harmless in (None, [], ["add"], "[not JSON", [{"name": None}]):
        assert conversation_of(Row(6, "-", {**values, "tools": harmless}), SourceConfig(path="-"), None, RewardConfig())


@pytest.mark.parametrize("column", ["image", "picture"])
@pytest.mark.parametrize("is_dataset", [False, True])
def test_a_column_of_media_in_a_table_is_refused_with_its_first_row(
    tmp_path: Path, is_dataset: bool, column: str
) -> None:
    images = pyarrow.array([None, None, {"bytes": b"png", "path": None}])
    others = {name: ["a"] * 3 for name in ("messages", "ground_truth", "dataset")}
    pyarrow.parquet.write_table(pyarrow.table({**others, column: images}), tmp_path / "rows.parquet")
    with pytest.raises(InvalidArgument, match=f"row 3: the column {column!r} .* on images"):
        if is_dataset:
            read_dataset(SourceConfig(dataset=str(tmp_path)))
        else:
            read_files(SourceConfig(path=str(tmp_path / "rows.parquet")))


def test_a_null_that_only_other_rows_calls_have_is_no_argument(tmp_path: Path) -> None:
    rows = [
        [ASKED | {"tool_calls": None}, {"role": "assistant", "content": None, "tool_calls": [
            {"function": {"name": name, "arguments": {name: 1}}}]}, ASKED | {"tool_calls": None}]
        for name in ("add", "subtract")
    ]  # fmt: skip
    table = pyarrow.table({"messages": rows, "ground_truth": ["2", "0"], "dataset": ["gsm8k"] * 2})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    for source in (SourceConfig(path=str(tmp_path / "rows.parquet")), SourceConfig(dataset=str(tmp_path))):
        found = read_files(source) if source.path else read_dataset(source)
        read_rows = [conversation_of(row, source, None, RewardConfig()) for row in found.rows]
        assert [one.messages[1].tool_calls[0].arguments_json for one in read_rows] == ['{"add": 1}', '{"subtract": 1}']
