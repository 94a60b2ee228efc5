"""Tests of reward functions of other trainers, called as verifiers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services.reward.custom.code import Code, Unusable
from services.reward.custom.custom_verifiers import read_code
from services.reward.custom.loading import LoadedVerifiers, load
from services.reward.pool.worker import judge_custom
from shoal.config.tables.custom_verifiers import CustomVerifierConfig

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


def code_of(tmp_path: Path, text: str, function: str, **table: Any) -> Code:
    path = tmp_path / "reward.py"
    path.write_text(text)
    return read_code("mine", CustomVerifierConfig(file=str(path), function=function, **table))


def judged_with(code: Code, **given: Any) -> dict[str, Any]:
    custom = LoadedVerifiers()
    custom.use(code)
    custom.load("mine")
    return dict(judge_custom(custom, "mine", given))


def refused(code: Code, why: str) -> str:
    """Returns the field that an unusable function is refused with."""
    with pytest.raises(Unusable, match=why) as error:
        load(code)
    return error.value.field


def judged(tmp_path: Path, text: str, label: Any, completion: str = "4", **table: Any) -> dict[str, Any]:
    code = code_of(tmp_path, text, "compute_score", **{"convention": "verl"} | table)
    return judged_with(code, completion=completion, label=label)


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
    assert 'lacks "format"' in judged(tmp_path, VERL, LABEL, score_key="format")["detail"]


def test_an_async_reward_function_of_verl_scores(tmp_path: Path) -> None:
    text = "async def compute_score(data_source, solution_str, ground_truth, **_): return {'score': 0.5}\n"
    assert judged(tmp_path, text, LABEL)["value"] == 0.5


@pytest.mark.parametrize(
    ("label", "why"), [("4", "label_columns"), (LABEL | {"data_source": "bad"}, 'lacks "score".* acc$')]
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
    assert refused(code_of(tmp_path, function, "compute_score", **table), "compute_score") == "function"


def test_arguments_of_the_table_reach_a_function_of_ours(tmp_path: Path) -> None:
    text = "def compute_score(completion, label, scale): return scale * (completion == label)\n"
    assert judged(tmp_path, text, "4", convention="shoal", arguments={"scale": 3})["value"] == 3.0


TRL = """
import json
import sys
from trl import GRPOConfig, GRPOTrainer  # This package is not installed here.
from datasets import load_dataset
from math import copysign as sign

BONUS = 0.5
TABLE = {}
TABLE["bonus"] = BONUS
config = GRPOConfig(output_dir="out")

def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]

def correct(prompts, completions, answer, **kwargs):
    dataset = completions
    return [sign(TABLE["bonus"], 1) * (text_of(one) == wanted) for one, wanted in zip(dataset, answer, strict=True)]

def look(prompts, completions, completion_ids, **columns):
    columns.pop("log_metric"), columns.pop("log_extra")
    raise ValueError(json.dumps([prompts, completions, completion_ids, columns]))

def none(completions, **kwargs):
    return [None for _ in completions]

async def waits(completions, **kwargs):
    return [0.25] * len(completions)

def logs(completions, log_metric, log_extra):
    log_metric("length", len(completions[0]))
    log_extra("seen", completions)
    return [1.0]

def default(completions, scale=0.75, **kwargs):
    return [scale]

def best(completions, **kwargs):
    return [1.0, 0.0]

def mean(completions, **kwargs):
    return 0.5

def late(completions, trainer_state, **kwargs):
    return [trainer_state.global_step]

def blind(prompts):
    return [1.0]

dataset = load_dataset("openai/gsm8k", "main")
trainer = GRPOTrainer(model="m", reward_funcs=[correct], args=config, train_dataset=dataset)
trainer.train()
"""
MESSAGES = [{"role": "user", "content": "2 + 2?"}]


def judged_by_trl(tmp_path: Path, function: str, label: Any, **table: Any) -> dict[str, Any]:
    code = code_of(tmp_path, TRL, function, **{"convention": "trl"} | table)
    return judged_with(code, completion="4", label=label, prompt="2 + 2?", messages=MESSAGES, token_ids=[52])


@pytest.mark.parametrize("label", [{"answer": "4"}, "4"])
def test_a_reward_function_of_trl_scores_from_the_script_that_trains_with_it(tmp_path: Path, label: Any) -> None:
    answer = judged_by_trl(tmp_path, "correct", label)
    assert (answer["outcome"], answer["value"]) == ("scored", 0.5), answer


@pytest.mark.parametrize("convention", ["trl", "trl_text"])
def test_a_reward_function_of_trl_gets_lists_of_one_completion(tmp_path: Path, convention: str) -> None:
    answer = judged_by_trl(tmp_path, "look", {"solution": "4", "level": 3.0}, convention=convention)
    prompts, completions, ids, columns = json.loads(answer["detail"].split(": ", 1)[1])
    is_text = convention == "trl_text"
    assert prompts == (["2 + 2?"] if is_text else [MESSAGES])
    assert completions == (["4"] if is_text else [[{"role": "assistant", "content": "4"}]])
    assert (ids, columns) == ([[52]], {"solution": ["4"], "level": [3]}) and isinstance(columns["level"][0], int)


@pytest.mark.parametrize(
    ("function", "outcome", "value", "why"),
    [
        ("none", "unscorable", 0.0, "None"),
        ("waits", "scored", 0.25, ""),
        ("default", "scored", 0.75, ""),
        ("logs", "scored", 1.0, ""),
        ("best", "failed", 0.0, "returned 2 rewards"),
        ("mean", "failed", 0.0, "returned float"),
    ],
)
def test_a_result_of_trl_is_one_reward_in_a_list(
    tmp_path: Path, function: str, outcome: str, value: float, why: str
) -> None:
    answer = judged_by_trl(tmp_path, function, {"scale": None})
    assert (answer["outcome"], answer["value"]) == (outcome, value), answer
    assert why in answer["detail"], answer


def test_what_a_function_of_trl_logs_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged_by_trl(tmp_path, "logs", {}, convention="trl_text")
    assert capsys.readouterr().out == "length = 1\nseen = ['4']\n"


def test_a_column_that_a_function_of_trl_needs_is_named(tmp_path: Path) -> None:
    answer = judged_by_trl(tmp_path, "correct", {"solution": "4"})
    assert answer["outcome"] == "failed"
    assert re.search(r"needs answer.*has solution.*label_columns", answer["detail"]), answer


@pytest.mark.parametrize("text", ["def f(completions:", "a = " + "(" * 500, "a = " + "-" * 100_000 + "1"])
def test_a_script_that_is_no_python_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(code_of(tmp_path, text, "f", convention="trl"), "cannot be imported") == "file"


@pytest.mark.parametrize(
    ("function", "why"),
    [("late", "needs 'trainer_state'"), ("blind", "takes no 'completions'"), ("missing", "it has: text_of, correct")],
)
def test_a_function_that_trl_alone_can_call_is_refused(tmp_path: Path, function: str, why: str) -> None:
    assert refused(code_of(tmp_path, TRL, function, convention="trl"), why) == "function"
