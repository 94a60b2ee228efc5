"""Tests of label checks: malformed labels are found before any completion is judged."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.reward.common.verdict import Unscorable
from services.reward.router import Router
from services.reward.sandbox.run import SandboxUnavailable
from services.reward.verifiers import code
from services.reward.verifiers.registry import VERIFIERS
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.judge import JudgeConfig
from shoal.config.tables.reward import RewardConfig
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.data.conversation import ground_truths_of
from shoal.data.rows import Row
from shoal.reasoning_entry import entry_to_text
from shoal.rollout import GroundTruth
from shoal.wire import ground_truth_from_wire, ground_truth_to_wire

NAMED_REFERENCE = {"definitions": {"c": {"$id": "#c", "type": "integer"}}, "items": {"$ref": "#c"}}
GYM = {
    "task": "leg_counting",
    "options": "{}",
    "entry": entry_to_text({"question": "q", "answer": "4", "metadata": {}}),
}
TEXTS = ["a", 5.0, ["a", "b"]], [None, "", [], ["a", None], {"a": 1}, True]
CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "code": (
        [["assert f(1) == 2"], json.dumps(["f(1)"])],
        ["assert f(1) == 2", [], ["f("], [1], "eJzT0yMAAGTvBe8=", {"input": "1"}],
    ),
    "code_stdio": ([[{"input": "1", "output": "2"}]], [["f(1)"], [{"input": "1"}], [], "no JSON"]),
    "exact_string": TEXTS,
    "flan": TEXTS,
    "gsm8k": (
        ["72", "so\n#### 1,234", ["5", "-5.5"]],
        ["many", "1/2", "", None, [], ["5", "five"], True, {"answer": "5"}, "#### "],
    ),
    "ifeval": (
        [
            {"instruction_id": ["punctuation:no_comma"], "kwargs": [None]},
            json.dumps([{"instruction_id": ["keywords:existence"], "kwargs": [{"keywords": ["a"]}]}]),
        ],
        [
            "no label",
            {"instruction_id": ["no:such"], "kwargs": [None]},
            {"instruction_id": ["keywords:existence"], "kwargs": [{"keyword": "a"}]},
            {"instruction_id": ["keywords:existence"], "kwargs": [{"keywords": ["("]}]},
            {
                "instruction_id": ["length_constraints:number_words"],
                "kwargs": [{"num_words": "9", "relation": "at least"}],
            },
            {"instruction_id": ["length_constraints:number_words"], "kwargs": [{"num_words": 9}]},
            {"instruction_id": ["language:response_language"], "kwargs": [{"language": "German"}]},
        ],
    ),
    "ifeval_old": (
        [{"func_name": "validate_lowercase"}, json.dumps({"func_name": "validate_title", "N": None})],
        [{}, {"func_name": "no_such"}, {"func_name": "verify_keywords"}, {"func_name": "validate_title", "N": 2}],
    ),
    "json_schema": (
        [
            {"type": "object"},
            True,
            {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://a/b", **NAMED_REFERENCE},
            {"properties": {"$ref": {"const": {"$ref": "#/no/reference"}}}},
            json.dumps({"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}),
        ],
        [
            "no JSON",
            [],
            {"type": "objekt"},
            {"properties": {"a": {"pattern": "("}}},
            {"properties": {"a": {"items": {"$ref": "#/$defs/none"}}}},
            {"$ref": "http://127.0.0.1:1/schema.json"},
            '{"type": "object", "type": "array"}',
            None,
            5,
        ],
    ),
    "language": (["de", ["en", "zh"]], ["German", "xx", "", [], None]),
    "math": (["\\frac{1}{2}", "5", ["5", "x^2"]], [None, "", [], {"a": 1}, "$$"]),
    "max_length": (["100", 5.0], ["long", None, "", "inf", True, "nan", [], {}]),
    "multiple_choice": (["A", "(b)", ["A", "B"]], ["AB", "", "1", None, [], {"a": 1}]),
    "puzzle": TEXTS,
    "re_search": TEXTS,
    "re_search_f1": TEXTS,
    "reasoning_gym": ([GYM], [GYM | {"task": "no_such"}, GYM | {"entry": "{"}, {"task": "leg_counting"}, "4", None]),
    "regex": (["a+", ["a", "b"]], ["(", "*", "a{2,1}", "(?P<a>x)(?P<a", "", None, ["a", "("]]),
    "strict_math": TEXTS,
    "string_f1": TEXTS,
    "string_matcher": TEXTS,
    "up_to_max_length": (["100", 5.0], ["long", None, "nan"]),
    **dict.fromkeys(
        [
            *("passthrough", "r1_format", "reasoning_steps", "repetition_penalty"),
            *("soft_overlong", "think_answer_format", "think_answer_tags", "think_format"),
        ],
        ([None, "", {"a": [1]}], []),
    ),
    **dict.fromkeys(["general-quality", "general-safety"], ([None, "", "a"], [])),
    **dict.fromkeys(
        [
            "general-creative_writing",
            "general-factuality",
            "general-quality_ref",
            "general-refusal",
            "general-web_instruct_general_verifier",
        ],
        (["a", ["a", "b"]], [None, "", [], {"a": 1}]),
    ),
    "general-quality_rubric": (["a", ["a", "b"], {"a": 1}], [None, " ", []]),
    "llm_judge": (["a", {"reference": "a"}], [None, {"rubric": "a"}, {"reference": "a", "extra": 1}]),
    "rubric": (
        [{"rubrics": [{"description": "a", "weight": -1}]}],
        [
            "a",
            {"rubrics": []},
            *({"rubrics": [one]} for one in ({"description": " "}, {"weight": 1})),
            *({"rubrics": [{"description": "a", "weight": weight}]} for weight in (0, True)),
        ],
    ),
}


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    # No server listens at this address, and label checks send no request.
    judge = JudgeConfig(base_url="http://127.0.0.1:9/v1", model="m", max_attempts=1)
    router = Router(RewardConfig(num_processes=1, judge=judge))
    await router.start()
    yield router
    await router.close()


def test_every_verifier_has_cases() -> None:
    assert set(CASES) == BUILT_IN_VERIFIERS - MODEL_VERIFIERS


async def test_good_labels_pass_and_malformed_ones_are_found(router: Router) -> None:
    wrong = []
    for name in sorted(CASES.keys() & (VERIFIERS.keys() | JUDGE_VERIFIERS)):
        good, malformed = CASES[name]
        for label in good:
            if problem := await router.label_problem(GroundTruth(name, label)):
                wrong.append(f"{name} refuses {label!r}: {problem}")
        for label in malformed:
            problem = await router.label_problem(GroundTruth(name, label))
            if not problem or "raised" in problem or "no verdict within" in problem:
                wrong.append(f"{name} accepts {label!r}, or breaks: {problem!r}")
    assert not wrong, "\n".join(wrong)


def test_labels_of_programs_are_checked_even_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "unavailable", lambda: "no sandbox")
    assert VERIFIERS["code"].judge("", ["f(1)"], (), {}).value == 0.0
    with pytest.raises(Unscorable, match="contains no test"):
        VERIFIERS["code"].judge("", [], (), {})
    with pytest.raises(SandboxUnavailable, match="no sandbox"):
        VERIFIERS["code"].judge("def f(x): pass", ["f(1)"], (), {})


@pytest.mark.parametrize(
    ("verifier", "label", "right", "wrong"),
    [
        ("json_schema", {"enum": [5, 6]}, "5", '"5"'),
        ("json_schema", {"type": "integer", "maximum": 5}, "5", "6"),
        ("json_schema", {"$schema": "http://json-schema.org/draft-04/schema#", "minLength": 2}, '"ab"', '"a"'),
        ("ifeval_old", {"func_name": "validate_word_constraint", "N": 3, "quantifier": "at least"}, "a b c", "a b"),
        (
            "ifeval",
            [
                {
                    "instruction_id": ["length_constraints:number_words"],
                    "kwargs": [{"num_words": 3, "relation": "at least"}],
                }
            ],
            "a b c",
            "a b",
        ),
    ],
)
def test_numbers_in_a_label_object_are_still_numbers_after_data_and_wire(
    verifier: str, label: Any, right: str, wrong: str
) -> None:
    row = Row(0, "row 1", {"dataset": verifier, "ground_truth": label})
    [truth] = ground_truths_of(row, SourceConfig(path="unused"), [verifier], RewardConfig())
    truth = ground_truth_from_wire(ground_truth_to_wire(truth))
    VERIFIERS[verifier].load()
    values = [VERIFIERS[verifier].judge(answer, truth.label, (), {}).value for answer in (right, wrong)]
    assert values == [1.0, 0.0], f"{verifier} gives {values} to a correct and a wrong answer by {truth.label}"
