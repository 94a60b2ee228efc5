"""Tests of the data sets that a Python file loads."""

import ast
from typing import Any

import pytest

from shoal.translate.sources.datasets import Datasets
from shoal.translate.sources.values import Unread, Values

GSM8K = {"dataset": "openai/gsm8k", "dataset_config": "main", "split": "train"}


def read(text: str) -> Any:
    tree = ast.parse(text)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    return Datasets(tree, Values(tree)).read(last.value)


@pytest.mark.parametrize(
    "text",
    [
        "load_dataset('openai/gsm8k', 'main', split='train')",
        "datasets.load_dataset('openai/gsm8k', name='main')['train']",
        "NAME = 'openai/gsm8k'\ndata = load_dataset(NAME, 'main')\ntrain = data['train'].shuffle(seed=1)\ntrain",
        "def get(split='train'):\n    data = load_dataset('openai/gsm8k', 'main')[split]\n    return data\nget()",
        "def get(name, part):\n    return load_dataset(name, 'main', split=part)\nget('openai/gsm8k', part='train')",
        "def a():\n    return b('train')\ndef b(s):\n    return load_dataset('openai/gsm8k', 'main', split=s)\na()",
    ],
)
def test_a_data_set_is_found_through_names_and_functions(text: str) -> None:
    assert read(text) == GSM8K | {"changes": []}


def test_files_are_found() -> None:
    both = "load_dataset('json', data_files={'train': 'a.jsonl', 'test': 'b.jsonl'}"
    for text in (f"{both}, split='train')", f"{both})['train']", "load_dataset('json', data_files='a.jsonl')['train']"):
        assert read(text) == {"path": "a.jsonl", "changes": []}, text
    for text in (f"{both})", f"{both})['dev']", f"{both}, split='dev')"):
        assert isinstance(read(text), Unread) or read(text)["changes"], text
    assert read("load_dataset('json', data_files='a.jsonl', split='train')") == {"path": "a.jsonl", "changes": []}


def test_changes_of_rows_are_named_with_their_lines() -> None:
    load = "def get():\n    data = load_dataset('openai/gsm8k', 'main', split='train')\n"
    text = f"{load}    data = data.map(f)\n    return data\nget().select(range(9))"
    assert read(text) == GSM8K | {"changes": ["map in line 3", "select in line 5"]}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("elsewhere()", "elsewhere()"),
        ("load_dataset(args.name)", "args.name"),
        ("def get(a):\n    if a:\n        return load_dataset('x')\n    return load_dataset('y')\nget(1)", "2 places"),
        ("load_dataset('x', data_dir='y')", "data_dir"),
        ("def get():\n    return get()\nget()", "get()"),
        ("data = data.map(f)\ndata", "data"),
    ],
)
def test_the_place_is_named_where_a_search_ends(text: str, where: str) -> None:
    found = read(text)
    assert isinstance(found, Unread) and where in found.text, found
