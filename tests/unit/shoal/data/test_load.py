"""Tests of loading prompts from files, datasets and tasks."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoal.config.tables.data import DataConfig, SourceConfig
from shoal.config.tables.model import ModelConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data import PromptSet, load_prompts
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt
from tests.support.tiny_model import make_tokenizer

VERIFIERS = ("gsm8k", "math", "exact_string", "reasoning_gym", "reward_model", "general-quality", "general-safety")
ROW = {"messages": "What is 2 + 2?", "ground_truth": "4", "dataset": "gsm8k"}


def write_jsonl(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(
    *sources: Mapping[str, Any],
    seed: int = 0,
    tokenizer: Any = None,
    reward: RewardConfig | None = None,
    model: ModelConfig | None = None,
    beside: Sequence[Prompt] = (),
    known_environments: Sequence[str] = (),
    **data: Any,
) -> PromptSet:
    config = DataConfig(sources=[SourceConfig(**source) for source in sources], **data)
    return load_prompts(
        config.sources,
        model=model or ModelConfig(path="unused"),
        data=config,
        seed=seed,
        reward=reward or RewardConfig(),
        known_verifiers=VERIFIERS,
        known_environments=known_environments,
        tokenizer=tokenizer or make_tokenizer(),
        beside=beside,
    )


def loaded(tmp_path: Path, *rows: Any, **source: Any) -> PromptSet:
    return load({"path": write_jsonl(tmp_path / "rows.jsonl", rows), **source})


def refusal(tmp_path: Path, *rows: Any, **source: Any) -> str:
    with pytest.raises(InvalidArgument) as error:
        loaded(tmp_path, *rows, **source)
    return error.value.message


def truths(prompts: PromptSet, number: int = 0) -> list[tuple[str, Any]]:
    return [(truth.verifier, truth.label) for truth in prompts.prompts[number].ground_truths]


def test_a_row_in_the_form_of_open_instruct_becomes_a_prompt(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
    ]
    prompts = loaded(tmp_path, {"messages": messages, "ground_truth": ["4", "4"], "dataset": ["gsm8k", "MATH"]})
    [prompt] = prompts.prompts
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.prompt_id == f"{tmp_path}/rows.jsonl:0"
    assert truths(prompts) == [("gsm8k", "4"), ("math", "4")]
    assert make_tokenizer().decode(prompt.token_ids) == prompt.text
    assert prompt.token_ids.dtype == "int32"


def test_the_messages_of_a_prompt_contain_no_chat_template_marks(tmp_path: Path) -> None:
    turns = [("system", "Answer in French."), ("user", "Hi"), ("assistant", "Salut"), ("user", "2 + 2?")]
    rows = [ROW, {**ROW, "messages": [{"role": role, "content": content} for role, content in turns]}]
    plain, talk = loaded(tmp_path, *rows).prompts
    assert plain.question == ROW["messages"] and "<|im_start|>" in plain.text
    assert talk.question.splitlines() == [f"{role}: {content}" for role, content in turns]
    assert replace(plain, messages=()).question == plain.text, "where no message is known the text is all there is"


def test_a_system_prompt_takes_the_place_of_the_rows_own(tmp_path: Path) -> None:
    row = {**ROW, "messages": [{"role": "system", "content": "old"}, {"role": "user", "content": "hi"}]}
    prompts = loaded(tmp_path, row, ROW, system_prompt="new")
    assert [prompt.text.partition("<|im_end|>")[0] for prompt in prompts.prompts] == ["<|im_start|>system\nnew"] * 2


def test_number_labels_become_text_and_numbers_inside_an_object_stay_numbers(tmp_path: Path) -> None:
    rows = [{**ROW, "ground_truth": label} for label in (4, 4.5, 72.0, 0.00001, 1e16, ["4", 5])]
    prompts = loaded(tmp_path, *rows)
    labels = [truths(prompts, number)[0][1] for number in range(len(rows))]
    assert labels == ["4", "4.5", "72", "0.00001", "1" + 16 * "0", ["4", "5"]]
    schema = {"enum": [5, 0.5, None, True], "maximum": 10, "const": 2**53 + 1}
    [(_, label)] = truths(loaded(tmp_path, {**ROW, "ground_truth": schema}))
    assert label == {"enum": [5, 0.5, None, True], "maximum": 10, "const": "9007199254740993"}, f"{label}"
    assert type(label["enum"][0]) is int and type(label["maximum"]) is int


def test_prompts_of_one_row_that_differ_have_different_ids(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [ROW, ROW])
    plain = {"path": path}
    brief, math = plain | {"system_prompt": "Be brief."}, plain | {"verifier": "math"}
    prompts = load(plain, brief, math, plain, {**brief, "count": 1})
    ids = [prompt.prompt_id.removeprefix(f"{tmp_path}/rows.jsonl") for prompt in prompts.prompts]
    assert ids[:8] == [":0", ":1", "#2:0", "#2:1", "#3:0", "#3:1", ":0", ":1"], ids
    assert ids[8] in ("#2:0", "#2:1"), ids
    beside = load(math, beside=load(plain).prompts)
    assert {prompt.prompt_id.partition("#")[2] for prompt in beside.prompts} == {"2:0", "2:1"}


def test_every_source_has_a_digest_that_changes_with_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [ROW])
    other = write_jsonl(tmp_path / "other.jsonl", [ROW])
    parquet = str(tmp_path / "rows.parquet")
    pyarrow.parquet.write_table(pyarrow.table({name: [value] for name, value in ROW.items()}), parquet)
    folder = tmp_path / "set"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [ROW])
    task = {"task": "arithmetic", "task_size": 3}
    sources = [{"path": [path, other]}, {"path": parquet}, {"dataset": str(folder)}, task]
    before = load(*sources).digests
    assert sorted(before) == sorted([path, other, parquet, f"{folder}/train", "arithmetic@0"])
    assert before[path] == before[other] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert load(*sources).digests == before
    write_jsonl(Path(other), [{**ROW, "ground_truth": "5"}])
    write_jsonl(folder / "train.jsonl", [{**ROW, "ground_truth": "5"}])
    now = load(*sources[:3], {**task, "task_options": {"max_operand": 5}}).digests
    assert sorted(name for name in before if now[name] != before[name]) == sorted(
        [other, f"{folder}/train", "arithmetic@0"]
    )


def test_columns_and_the_verifier_are_configurable(tmp_path: Path) -> None:
    row = {"question": "2+2?", "answer": "two and two\n#### 4"}
    prompts = loaded(tmp_path, row, messages_column="question", ground_truth_column="answer", verifier="gsm8k")
    assert truths(prompts) == [("gsm8k", row["answer"])]


def test_a_verifier_that_reads_no_label_needs_none(tmp_path: Path) -> None:
    question = {"messages": "Tell me a story."}
    assert truths(loaded(tmp_path, question, verifier="reward_model")) == [("reward_model", "")]
    rows = [{**question, "dataset": name} for name in ("general-safety", ["reward_model", "general-quality"])]
    prompts = loaded(tmp_path, *rows, {**ROW, "dataset": ["gsm8k", "reward_model"], "ground_truth": ["4", None]})
    assert truths(prompts, 0) == [("general-safety", "")]
    assert truths(prompts, 1) == [("reward_model", ""), ("general-quality", "")]
    assert truths(prompts, 2) == [("gsm8k", "4"), ("reward_model", "")]
    with pytest.raises(InvalidArgument, match="no column 'ground_truth'"):
        loaded(tmp_path, {**question, "dataset": ["gsm8k", "reward_model"]})


def test_a_name_that_holds_the_name_of_a_verifier_is_refused_with_that(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"'openai/gsm8k' .*'gsm8k'"):
        loaded(tmp_path, {**ROW, "dataset": "openai/gsm8k"})


def test_parquet_and_jsonl_give_the_same_prompts(tmp_path: Path) -> None:
    rows = [{**ROW, "messages": [{"role": "user", "content": f"{number}?"}]} for number in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    texts = [prompt.text for prompt in load({"path": str(tmp_path / "rows.parquet")}).prompts]
    assert texts == [prompt.text for prompt in loaded(tmp_path, *rows).prompts]


NESTED = [
    {"messages": "1?", "dataset": "gsm8k", "reward_model": {"ground_truth": "1", "style": "rule"}, "answer": "one"},
    {"messages": "2?", "dataset": "gsm8k", "reward_model": {"ground_truth": "2", "style": "model"}, "answer": None},
]


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        pytest.param({"ground_truth_column": "reward_model.ground_truth"}, ["1", "2"], id="dotted"),
        pytest.param(
            {
                "verifier": "general-quality",
                "label_columns": {"reference": "answer", "kind": "reward_model.style", "rubric": "absent"},
            },
            [
                {"reference": "one", "kind": "rule", "rubric": None},
                {"reference": None, "kind": "model", "rubric": None},
            ],
            id="label-columns",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "data-set"])
def test_labels_come_from_the_columns_that_are_named(
    tmp_path: Path, kind: str, source: dict[str, Any], labels: list[Any]
) -> None:
    place = {"path": str(tmp_path / f"rows.{kind}")}
    if kind == "jsonl":
        write_jsonl(tmp_path / "rows.jsonl", NESTED)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(NESTED), tmp_path / "rows.parquet")
    else:
        pytest.importorskip("datasets").Dataset.from_list(NESTED).save_to_disk(str(tmp_path / "saved"))
        place = {"dataset": str(tmp_path / "saved")}
    prompts = load({**place, **source})
    assert [truths(prompts, number)[0][1] for number in range(2)] == labels


def test_a_dotted_column_of_parquet_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(NESTED), tmp_path / "rows.parquet")
    with pytest.raises(InvalidArgument, match=r"'extra\.label'; .*: messages, dataset, reward_mod"):
        load({"path": str(tmp_path / "rows.parquet"), "ground_truth_column": "extra.label"})


def test_a_malformed_row_of_a_parquet_file_has_the_number_that_it_has_as_a_line(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "dataset": "nothing"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with pytest.raises(InvalidArgument, match=r"rows\.parquet row 2: .*'nothing'"):
        load({"path": str(tmp_path / "rows.parquet")})
    with pytest.raises(InvalidArgument, match=r"rows\.jsonl:2: .*'nothing'"):
        loaded(tmp_path, *rows)


@pytest.mark.parametrize("kind", ["files", "saved"])
def test_hugging_face_datasets_are_read_from_a_folder(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    if kind == "saved":
        datasets.DatasetDict(train=datasets.Dataset.from_list([ROW] * 2)).save_to_disk(tmp_path / "set")
    else:
        (tmp_path / "set").mkdir()
        write_jsonl(tmp_path / "set" / "train.jsonl", [ROW] * 2)
    prompts = load({"dataset": str(tmp_path / "set")})
    assert [prompt.prompt_id for prompt in prompts.prompts] == [f"{tmp_path}/set/train:{row}" for row in range(2)]
    with pytest.raises(InvalidArgument, match=r"split test.*cannot be loaded"):
        load({"dataset": str(tmp_path / "set"), "split": "test"})
    with pytest.raises(InvalidArgument, match=r"'question'; .*: messages"):
        load({"dataset": str(tmp_path / "set"), "messages_column": "question"})


def test_a_missing_dataset_is_refused_by_name() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(InvalidArgument, match="/nonexistent/folder/of/data "):
        load({"dataset": "/nonexistent/folder/of/data"})


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ({}, {0: 1, 1: 1, 2: 1, 3: 1}),
        ({"count": 2}, 2),
        ({"count": 9}, 9),
        ({"fraction": 0.5}, 2),
        ({"fraction": 1.0}, {0: 1, 1: 1, 2: 1, 3: 1}),
        ({"fraction": 3.0}, {0: 3, 1: 3, 2: 3, 3: 3}),
    ],
)
def test_sources_are_mixed_by_fraction_or_count(tmp_path: Path, share: dict[str, Any], expected: Any) -> None:
    prompts = loaded(tmp_path, *[{**ROW, "messages": str(number)} for number in range(4)], **share)
    uses = {number: prompts.questions.count(f"user: {number}") for number in range(4)}
    if isinstance(expected, dict):
        assert uses == expected
    else:
        assert len(prompts) == expected
        assert max(uses.values()) - min(uses.values()) <= 1, uses


def test_the_selected_rows_do_not_depend_on_the_seed_of_the_run(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{**ROW, "messages": str(number)} for number in range(100)])
    first, second = (load({"path": path, "count": 10}, seed=seed) for seed in (1, 2))
    assert first.questions == second.questions


def test_a_fraction_that_selects_no_row_is_refused(tmp_path: Path) -> None:
    assert "fraction 0.1 of 4 rows" in refusal(tmp_path, *[ROW] * 4, fraction=0.1)


def test_prompts_that_are_too_long_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [ROW, {**ROW, "messages": "x" * 100}])
    prompts = load({"path": path, "fraction": 2.0}, max_prompt_tokens=80)
    assert (len(prompts), prompts.num_dropped_too_long) == (2, 2)
    longest = max(len(prompt.token_ids) for prompt in prompts.prompts)
    assert load({"path": path}, max_prompt_tokens=longest).num_dropped_too_long == 1
    with pytest.raises(InvalidArgument, match=rf"longer than {longest - 1} tokens .*shortest has {longest}"):
        load({"path": path}, max_prompt_tokens=longest - 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json}", "not a line of JSON"),
        (b'["a"]', "each line must be one JSON object"),
        (b'{"messages": "\xff"}', "not a line of JSON"),
        (b'{"messages": "a", "dataset": "gsm8k"}', "there is no column 'ground_truth'; the row has"),
        (b'{"messages": 3, "ground_truth": "4", "dataset": "gsm8k"}', "messages must be a question"),
        (b'{"messages": [], "ground_truth": "4", "dataset": "gsm8k"}', "messages must be a question"),
        (
            b'{"messages": [{"role": "user"}], "ground_truth": "4", "dataset": "gsm8k"}',
            r"messages\[0\] needs a content",
        ),
        (b'{"messages": "\\ud800", "ground_truth": "4", "dataset": "gsm8k"}', ".*lone surrogate"),
        (
            b'{"messages": "a", "ground_truth": "4", "dataset": "gsm9k"}',
            r"no verifier.*'gsm9k' \(did you mean 'gsm8k'\?\); known",
        ),
        (b'{"messages": "a", "ground_truth": "4", "dataset": 7}', "dataset must be"),
        (b'{"messages": "a", "ground_truth": ["4"], "dataset": ["gsm8k", "math"]}', "the row has 2 verifiers for 1"),
        (b'{"messages": "a", "ground_truth": null, "dataset": "gsm8k"}', "ground_truth is null"),
        (b'{"messages": "a", "ground_truth": NaN, "dataset": "gsm8k"}', "ground_truth is nan"),
        (b'{"messages": ' + b"[" * 100_000, "not a line of JSON"),
        (
            b'{"messages": "a", "ground_truth": "4", "dataset": "gsm8k", "ground_truth": "5"}',
            "not a line of JSON: the key 'ground_truth' occurs twice",
        ),
        (b'{"messages": "a", "ground_truth": {"b": [{"c": 1, "c": 1}]}, "dataset": "gsm8k"}', ".* 'c' occurs twice"),
        (b"{", "not a line of JSON: .*; in JSONL each object is whole on one line"),
        (b'{"messages": "a"}, ', "delete ',' after the object, at column 18"),
        (b' {"messages": "a"} ;', "delete ';' after the object, at column 20"),
        (b'{"messages": "a",}', "delete the comma before '}', at column 17"),
        (b'{"messages": ["a", ]}', "delete the comma before ']', at column 18"),
        (b'{"a": 1}{"b": 2}', "another object begins after the first, at column 9"),
        (b'{"a": 1}, {"b": 2},', "another object begins after the first, at column 9"),
    ],
)
def test_a_malformed_row_is_refused_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n" + line + b"\n")
    with pytest.raises(InvalidArgument, match=rf"rows\.jsonl:2: {message}"):
        load({"path": str(tmp_path / "rows.jsonl")})


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_named_as_such(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "rows.jsonl").write_text("\n" + json.dumps([ROW, ROW], indent=indent), encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"rows\.jsonl:2: .* jq -c '\.\[\]'"):
        load({"path": str(tmp_path / "rows.jsonl")})


def test_a_file_that_is_missing_empty_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "rows.parquet").write_text("not parquet")
    for name, message in [
        ("missing.jsonl", "no such file"),
        ("empty.jsonl", "is empty"),
        ("rows.csv", r"\.csv.*\.jsonl or \.parquet"),
        ("rows.parquet", "cannot be read as Parquet"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            load({"path": str(tmp_path / name)})


@pytest.mark.parametrize("name", ["~nobody-at-all/rows.jsonl", f"{'long' * 100}.jsonl"])
def test_an_invalid_path_is_refused(name: str) -> None:
    for kind in ("path", "dataset"):
        with pytest.raises(InvalidArgument, match=f"data.sources: {kind}: '{name[:50]}"):
            load({kind: name})


def test_a_chat_template_that_refuses_the_messages_is_reported_with_the_row(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only tools') }}"
    with pytest.raises(InvalidArgument, match=r"rows\.jsonl:1: .*only tools"):
        load({"path": write_jsonl(tmp_path / "rows.jsonl", [ROW])}, tokenizer=tokenizer)
    tokenizer.chat_template = "{{ 1 // 0 }}"
    with pytest.raises(InvalidArgument, match=r"model\.chat_template.*by zero"):
        load({"path": write_jsonl(tmp_path / "rows.jsonl", [ROW])}, tokenizer=tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(InvalidArgument, match=r"model\.chat_template"):
        load({"path": write_jsonl(tmp_path / "rows.jsonl", [ROW])}, tokenizer=tokenizer)


def test_arithmetic_generates_distinct_sums_with_their_answers() -> None:
    prompts = load({"task": "arithmetic", "task_size": 100, "task_options": {"max_operand": 9}})
    assert len(set(prompts.questions)) == 100, "the task has 100 different sums of two digits"
    for number, question in enumerate(prompts.questions):
        first, second = (int(word.rstrip("?")) for word in question.split() if word.rstrip("?").isdigit())
        assert truths(prompts, number) == [("gsm8k", str(first + second))]
        assert 0 <= first <= 9 and 0 <= second <= 9


def test_the_task_seed_determines_the_questions() -> None:
    first, again, other = (load({"task": "arithmetic", "task_size": 50, "task_seed": seed}) for seed in (1, 1, 2))
    assert first.questions == again.questions != other.questions


def test_reasoning_gym_generates_questions_with_the_labels_for_its_scorer() -> None:
    pytest.importorskip("reasoning_gym")
    prompts = load({"task": "basic_arithmetic", "task_size": 3, "task_options": {"max_terms": 3.0}})
    [(verifier, label)] = truths(prompts)
    assert (verifier, label["task"], label["options"]) == ("reasoning_gym", "basic_arithmetic", '{"max_terms":3}')
    assert json.loads(label["entry"])["question"] in prompts.prompts[0].text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"task": "arithmetic", "task_options": {"operands": 3}}, "no option 'operands'; known: max_operand"),
        ({"task": "arithmetic", "task_options": {"max_operand": -1}}, "given: -1"),
        ({"task": "arithmetic", "task_options": {"max_operand": 1}, "task_size": 5}, "only 4 different questions"),
        ({"task": "basic_aritmetic"}, "did you mean basic_arithmetic"),
        ({"task": "basic_arithmetic", "task_options": {"nonsense": 3}}, "refuses the options.*nonsense"),
    ],
)
def test_an_invalid_task_is_refused_with_the_fix(source: dict[str, Any], message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InvalidArgument, match=message):
        load(source)


def test_verifiers_are_remapped_and_weighted_before_they_are_checked(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": "1 + 1?", "ground_truth": "2", "dataset": "MY_Sums"}])
    reward = RewardConfig(remap={"My_Sums": "GSM8K"}, weights={"gsm8k": 0.5})
    (truth,) = load({"path": path, "weight": 10.0}, reward=reward).prompts[0].ground_truths
    assert (truth.verifier, truth.weight) == ("gsm8k", 5.0)


def test_the_star_of_remap_is_every_other_name_in_the_data_but_no_verifier_of_a_source(tmp_path: Path) -> None:
    names = ("MY_Sums", "gsm8k", "aime")
    rows = [{"messages": f"{n}?", "ground_truth": "2", "dataset": name} for n, name in enumerate(names)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    reward = RewardConfig(remap={"my_sums": "gsm8k", "*": "math"})
    prompts = load({"path": path}, reward=reward).prompts
    assert [prompt.ground_truths[0].verifier for prompt in prompts] == ["gsm8k", "math", "math"]
    chosen = load({"path": path, "verifier": "gsm8k"}, reward=reward).prompts
    assert {prompt.ground_truths[0].verifier for prompt in chosen} == {"gsm8k"}


@pytest.mark.parametrize("field", ["weights", "remap", "correct"])
def test_settings_of_an_unknown_verifier_are_refused(tmp_path: Path, field: str) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": "1 + 1?", "ground_truth": "2", "dataset": "gsm8k"}])
    settings: dict[str, Any] = {"weights": {"gsm9k": 1.0}, "remap": {"sums": "gsm9k"}, "correct": ["gsm9k"]}
    with pytest.raises(InvalidArgument, match=rf"reward.{field}: .*'gsm9k' .*'gsm8k'"):
        load({"path": path}, reward=RewardConfig(**{field: settings[field]}))


def test_values_for_the_chat_template_reach_the_prompts(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if not think %}!{% endif %}"
    model = ModelConfig(path="unused", chat_template_kwargs={"think": False})
    path = write_jsonl(tmp_path / "rows.jsonl", [ROW])
    assert load({"path": path}, tokenizer=tokenizer, model=model).prompts[0].text == "What is 2 + 2?!"


def tagged(path: Path, tags: Sequence[str]) -> str:
    return write_jsonl(path, [{**ROW, "messages": f"{path.stem} {n}?", "tag": tag} for n, tag in enumerate(tags)])


def labeled(path: str | list[str], *labels: str, count: int | None = None) -> dict[str, Any]:
    return {"path": path, "labels": labels, "verifier_column": "tag", "count": count}


LABELED = RewardConfig(remap={"sums": "math", "words": "exact_string"})


def test_several_files_are_read_as_one_and_their_rows_keep_apart(tmp_path: Path) -> None:
    paths = [tagged(tmp_path / "a.jsonl", ["sums", "words"]), tagged(tmp_path / "b.jsonl", ["sums"])]
    prompts = load(labeled(paths), reward=LABELED).prompts
    assert [prompt.messages[0].content for prompt in prompts] == ["a 0?", "a 1?", "b 0?"]
    assert len({prompt.prompt_id for prompt in prompts}) == 3


def test_the_labels_of_each_source_divide_files_into_shares(tmp_path: Path) -> None:
    paths = [tagged(tmp_path / "a.jsonl", ["Sums", "words"] * 4), tagged(tmp_path / "b.jsonl", ["words"] * 3)]
    prompts = load(labeled(paths, "sums", count=6), labeled(paths, "WORDS", count=2), reward=LABELED).prompts
    assert Counter(prompt.ground_truths[0].verifier for prompt in prompts) == {"math": 6, "exact_string": 2}
    ids = {prompt.prompt_id for prompt in prompts}
    assert len(ids) == 4 + 2, "six prompts of four rows repeat two of them"


def test_labels_that_no_row_has_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r" math .* sums, words"):
        load(labeled(tagged(tmp_path / "a.jsonl", ["sums", "words"]), "math"), reward=LABELED)
