"""Scores of every gold solution of GSM8K's test set."""

import json
from pathlib import Path

import pytest

from services.reward.verifiers import gsm8k
from tests.golden import golden_folder


def solutions() -> list[str]:
    folder = golden_folder()
    file = (folder.parent / "data" / "gsm8k_test.jsonl") if folder else Path("gsm8k_test.jsonl")
    if not file.is_file():
        pytest.skip(f"{file} is not here: set SHOAL_GOLDEN, or put shared/ beside the checkout")
    return [json.loads(line)["answer"] for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_gold_solution_scores_1_against_its_own_answer() -> None:
    wrong = [text for text in solutions() if gsm8k.verify(text, text.rpartition("####")[2]).value != 1]
    assert not wrong, f"{len(wrong)} of {len(solutions())}, first: {wrong[0]!r}"


@pytest.mark.parametrize("distance", [1, 7, 100])
def test_no_gold_solution_scores_against_the_answer_of_another(distance: int) -> None:
    texts = solutions()
    answers = [text.rpartition("####")[2].strip().replace(",", "") for text in texts]
    others = answers[distance:] + answers[:distance]
    pairs = [(text, other) for text, own, other in zip(texts, answers, others, strict=True) if own != other]
    paid = [text for text, other in pairs if gsm8k.verify(text, other).value != 0]
    assert not paid, f"{len(paid)} of {len(pairs)}, first: {paid[0]!r}"
