"""Tests of what verifiers get to read."""

from typing import Any

import pytest

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from services.reward.verifiers.registry import ALL_VERIFIERS

WHOLE = {
    *("max_length", "passthrough", "r1_format", "reasoning_steps", "repetition_penalty", "soft_overlong"),
    *("think_answer_format", "think_answer_tags", "think_format", "up_to_max_length"),
}
"""Those that judge form or length."""


def echo(text: str, label: Any, **read: Any) -> Verdict:
    return Verdict(0.0, answer=text)


def test_only_verifiers_of_form_and_length_read_thoughts() -> None:
    assert {name for name, verifier in ALL_VERIFIERS.items() if verifier.reads != "answer"} == WHOLE


def test_a_verifier_that_says_nothing_gets_the_answer_alone() -> None:
    verifier = Verifier(echo, "0")
    assert verifier.judge("<think>7</think>8", None, (), {}).answer == "8"
    assert verifier.judge("<think>7</think>8", None, (), {}, keep_thoughts=True).answer == "<think>7</think>8"
    verdict = verifier.judge("<think>7", None, (), {})
    assert (verdict.answer, verdict.detail) == ("", "nothing but thoughts")


@pytest.mark.parametrize("reads", ["completion", "num_tokens", "token_ids"])
def test_a_verifier_of_form_or_length_gets_everything(reads: Any) -> None:
    assert Verifier(echo, "0", reads=reads).judge("<think>7", None, (1, 2), {}).answer == "<think>7"
