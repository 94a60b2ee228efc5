"""Tests of the verifiers of math, exact strings, reasoning-gym tasks and formats."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from services.reward.verifiers.registry import VERIFIERS
from shoal.config.tables.data import SourceConfig
from shoal.data.tasks import make_task


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def value(verifier: str, completion: str, label: Any) -> float:
    VERIFIERS[verifier].load()
    return VERIFIERS[verifier].judge(completion, label, (), {}).value


@pytest.mark.parametrize(
    ("completion", "label", "expected"),
    [
        ("5.50", 5.5, 1.0),
        ("it is $1,234.", 1234.0, 1.0),
        ("1,2,3", "3", 1.0),
        ("10\u201312", "12", 1.0),
        ("The price range is $10-$15", "15", 1.0),
        (r"\$20-\$5", "5", 1.0),
        ("The change:\n-$5", "5", 1.0),
        ("The change:\n\u2212$5", "-5", 1.0),
        ("They are left:\n\u20135 apples", "5", 1.0),
        ("-€40", "-40", 1.0),
        ("+£5", "5", 0.0),
        ("1250", "£1,250", 1.0),
        ("9500", r"$9{,}500", 1.0),
        ("7", ["6", "7"], 1.0),
        ("18", "She makes 9 * 2 = $<<9*2=18>>18.\n#### 18", 1.0),
        ("2", "Twelve hundred.\n#### 1,200", 0.0),
        ("1200", "Twelve hundred.\n#### 1,200", 1.0),
    ],
)
def test_gsm8k_compares_the_last_number(completion: str, label: Any, expected: float) -> None:
    assert value("gsm8k", completion, label) == expected


@pytest.mark.parametrize(
    "number",
    [
        *("9{,}500", r"9\,500", r"9,\!500", r"9\;500", r"9\ 500"),
        *("9~500", r"9{\,}500", r"9\mathord{,}500", "9&nbsp;500"),
        *("9\u00a0500", "9\u202f500", "9\u2009500", "9\u2007500"),
    ],
)
def test_gsm8k_reads_grouped_numbers_whole(number: str) -> None:
    for completion, label, expected in [
        (f"It is ${number}$.", "9500", 1.0),
        (f"It is -{number}", "-9500", 1.0),
        (f"{number}.50", "9500.5", 1.0),
        (f"So {number}", "500", 0.0),
        (f"1{number[1:]}{number[1:]}", "1500500", 1.0),
        (f"{number}0", "9500", 0.0),
    ]:
        assert value("gsm8k", completion, label) == expected, completion


@pytest.mark.parametrize(
    ("completion", "tail"),
    [("1'250", "250"), ("1\u2019250", "250"), ("1_000", "0"), ("12{,}5", "5"), ("1.234,56", "56"), ("10,00,000", "0")],
)
def test_gsm8k_never_pays_the_tail_of_a_number(completion: str, tail: str) -> None:
    assert value("gsm8k", completion, tail) == 0.0


@pytest.mark.parametrize(
    ("completion", "label", "expected"),
    [
        (r"$\boxed{[0,1]}$", "[0,1)", 0.0),
        (r"$\boxed{18.9}$", r"\$18.90", 1.0),
        (r"$\boxed{4}$", r"We find $x=2$, so the answer is $\boxed{4}$.", 1.0),
        (r"$\boxed{7}$", ["6", "7"], 1.0),
        (r"$\boxed{12\,345\,678}$", "12345678", 1.0),
        (r"$\boxed{12,345.60}$", "12345.6", 1.0),
        (r"$\boxed{15\ \mathrm{km}}$", "15", 1.0),
        (r"$\boxed{5\text{ or }6}$", "5", 0.0),
        ("The answer is -3e2.", "-300", 1.0),
    ],
)
def test_math_compares_answers_by_meaning(completion: str, label: Any, expected: float) -> None:
    assert value("math", completion, label) == expected


@pytest.mark.parametrize(
    ("answer", "label", "expected"),
    [
        ("0.0000004", "0.0000003", 0.0),
        (r"9.1 \times 10^{-31}", r"1.6 \times 10^{-19}", 0.0),
        (r"\{0.0000004, 1\}", r"\{0.0000003, 1\}", 0.0),
        ("0.000143", r"\frac{1}{7000}", 0.0),
        ("0.333333", r"\frac{1}{3}", 1.0),
        ("3e2x", "300x", 0.0),
        ("12_8", "12", 0.0),
        ("12", "12_8", 0.0),
        ("12_8", "12_9", 0.0),
        pytest.param("5_{" + 5000 * "1" + "}", "5", 0.0, id="a base of 5000 digits"),
        ("2x_1", "2x_1", 1.0),
        ("-1", "i^2", 1.0),
        ("-i", "i", 0.0),
        ("i<5", "5", 0.0),
        (r"1 \le i \le 5", "[1,5]", 0.0),
        ("[0,i]", "[0,1]", 0.0),
        (r"\max(i,2)", "2", 0.0),
        ("7", r"1 \le i", 0.0),
        (r"1 \le i", r"1 \le i", 1.0),
        (r"\text{5 apples}", "5", 1.0),
        ("5", r"\text{5 apples}", 1.0),
        (r"\text{5 or 6}", "5", 0.0),
        (r"\text{5 million}", "5", 0.0),
        (r"9^{9^{9^{9}}}", "5", 0.0),
        (r"9^{9^{9}}", "9^{9^9}", 1.0),
        (r"\begin{pmatrix} 9^{9^{9^{9}}} \end{pmatrix}", r"\begin{pmatrix} 5 \end{pmatrix}", 0.0),
    ],
)
def test_math_reads_small_numbers_bases_powers_and_signs(answer: str, label: str, expected: float) -> None:
    VERIFIERS["math"].load()
    assert value("math", rf"$\boxed{{{answer}}}$", label) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("<answer>4</answer>", 1.0), ("<think>$4$</think><answer>5</answer>", 0.0), (r"$\boxed{4}$", 1.0)],
)
def test_math_reads_answer_tags_if_configured(completion: str, expected: float) -> None:
    assert VERIFIERS["math"].judge(completion, "4", (), {"answer_tags": True}).value == expected


needs_reasoning_gym = pytest.mark.skipif("reasoning_gym" not in VERIFIERS, reason="reasoning-gym is not installed")


def reasoning_label(task: str, **options: Any) -> Any:
    [row] = make_task(SourceConfig(task=task, task_size=1, task_seed=3, task_options=options)).rows
    return row.values["ground_truth"]


@needs_reasoning_gym
@pytest.mark.parametrize("task", ["basic_arithmetic", "arc_1d", "rearc", "countdown"])
def test_reasoning_gym_gives_full_reward_to_the_answer_of_the_task(task: str) -> None:
    label = reasoning_label(task)
    answer = json.loads(label["entry"])["answer"]
    if task == "countdown":
        answer = json.loads(label["entry"])["metadata"]["expression"]
    assert (
        value("reasoning_gym", f"<think>3</think> It is <answer>1</answer>, no, <answer>{answer}</answer>", label) == 1
    )
    assert value("reasoning_gym", f"<think>3</think>\n{answer}", label) == 1
    assert value("reasoning_gym", "<answer>nonsense</answer>", label) < 0.1


def test_the_r1_format_allows_text_after_the_answer() -> None:
    assert value("r1_format", "thought\n</think>\n\n<answer>4\n</answer> and more", "4") == 1.0
