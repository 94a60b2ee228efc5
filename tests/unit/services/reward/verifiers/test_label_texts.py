"""Labels and answers as text with a key twice."""

from typing import Any

import pytest

from services.reward.common.verdict import Unscorable
from services.reward.verifiers.ifeval.labels import read_function, read_instructions
from services.reward.verifiers.registry import VERIFIERS


@pytest.mark.parametrize(
    ("read", "label", "key"),
    [
        (read_instructions, {"instruction_id": ["a"], "kwargs": ['{"n": 1, "n": 2}']}, "n"),
        (read_instructions, "[{'instruction_id': ['a'], 'kwargs': [{'n': 1, 'n': 2}]}]", "n"),
        (read_function, '{"func_name": "a", "func_name": "b"}', "func_name"),
        (read_function, "{'func_name': 'verify_paragraph_count', 'N': 2, 'N': 3}", "N"),
    ],
)
def test_a_label_in_json_or_python_with_a_key_twice_is_unscorable(read: Any, label: Any, key: str) -> None:
    with pytest.raises(Unscorable, match=f"{key!r} occurs twice"):
        read(label)


def test_an_answer_with_a_key_twice_is_judged() -> None:
    schema = VERIFIERS["json_schema"]
    schema.load()
    assert schema.judge('{"a": "b", "a": 1}', '{"properties": {"a": {"type": "integer"}}}', (), {}).value == 1


@pytest.mark.parametrize(
    ("changed", "key"),
    [({"entry": '{"answer": "1", "answer": "2", "metadata": {}}'}, "answer"), ({"options": '{"n": 1, "n": 2}'}, "n")],
)
def test_a_reasoning_gym_label_with_a_key_twice_is_unscorable(changed: dict[str, str], key: str) -> None:
    label = {"task": "leg_counting", "options": "{}", "entry": "{}"} | changed
    with pytest.raises(Unscorable, match=f"{key!r} occurs twice"):
        VERIFIERS["reasoning_gym"].judge("1", label, (), {})
