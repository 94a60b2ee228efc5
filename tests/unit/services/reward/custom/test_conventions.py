"""Tests of reward functions of other trainers, called as verifiers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services.reward.custom.code import Unusable, read_code
from services.reward.custom.loading import LoadedVerifiers, load
from services.reward.pool.worker import judge_custom
from shoal.config.custom_verifiers import CustomVerifierConfig

VERL = """
import json

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    if data_source == "bad":
        return {"acc": 1}
    if data_source == "look":
        raise ValueError(json.dumps([solution_str, ground_truth, extra_info]))
    return {"score": float(solution_str == ground_truth["answer"]) + bonus, "acc": 1}
"""
LABEL = {"data_source": "mine", "ground_truth": {"answer": "4"}, "extra_info": {"index": 3.0, "share": 0.5}}


def judged(tmp_path: Path, text: str, label: Any, completion: str = "4", **table: Any) -> dict[str, Any]:
    path = tmp_path / "reward.py"
    path.write_text(text)
    custom = LoadedVerifiers()
    settings = {"file": str(path), "function": "compute_score", "convention": "verl"} | table
    custom.use(read_code("mine", CustomVerifierConfig(**settings)))
    custom.load("mine")
    return dict(judge_custom(custom, "mine", {"completion": completion, "label": label}))


def test_a_reward_function_of_verl_scores(tmp_path: Path) -> None:
    right, wrong = (judged(tmp_path, VERL, LABEL, completion) for completion in ("4", "5"))
    assert (right["value"], wrong["value"]) == (1.0, 0.0), (right, wrong)
    assert judged(tmp_path, VERL, LABEL, arguments={"bonus": 0.25})["value"] == 1.25


def test_a_reward_function_of_verl_gets_what_verl_gives_it(tmp_path: Path) -> None:
    answer = judged(tmp_path, VERL, LABEL | {"data_source": "look"}, "a b")
    seen = json.loads(answer["detail"].split(": ", 1)[1])
    extra = {"index": 3, "share": 0.5, "num_turns": 2, "rollout_reward_scores": {}}
    assert seen == ["a b", {"answer": "4"}, extra] and isinstance(seen[2]["index"], int)


def test_any_part_of_a_table_may_be_the_score(tmp_path: Path) -> None:
    assert judged(tmp_path, VERL, LABEL, "5", score_key="acc")["value"] == 1.0
    assert 'without "format"' in judged(tmp_path, VERL, LABEL, score_key="format")["detail"]


def test_an_async_reward_function_of_verl_scores(tmp_path: Path) -> None:
    text = "async def compute_score(data_source, solution_str, ground_truth, **_): return {'score': 0.5}\n"
    assert judged(tmp_path, text, LABEL)["value"] == 0.5


@pytest.mark.parametrize(
    ("label", "why"), [("4", "label_columns"), (LABEL | {"data_source": "bad"}, 'without "score".*it has: acc')]
)
def test_what_verl_would_not_take_has_no_verdict(tmp_path: Path, label: Any, why: str) -> None:
    answer = judged(tmp_path, VERL, label)
    assert answer["outcome"] == "failed"
    assert re.search(why, answer["detail"]), answer


@pytest.mark.parametrize(
    ("function", "table"),
    [
        ("def compute_score(completion): return 1", {"convention": "verl"}),
        ("def compute_score(data_source, solution_str): return 1", {"convention": "verl"}),
        ("def compute_score(completion): return 1", {"arguments": {"bonus": 1}}),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(tmp_path: Path, function: str, table: dict[str, Any]) -> None:
    path = tmp_path / "reward.py"
    path.write_text(function)
    code = read_code("mine", CustomVerifierConfig(file=str(path), function="compute_score", **table))
    with pytest.raises(Unusable, match="compute_score cannot be called with") as error:
        load(code)
    assert error.value.field == "function"


def test_arguments_of_the_table_reach_a_function_of_ours(tmp_path: Path) -> None:
    text = "def compute_score(completion, label, scale): return scale * (completion == label)\n"
    assert judged(tmp_path, text, "4", convention="shoal", arguments={"scale": 3})["value"] == 3.0
