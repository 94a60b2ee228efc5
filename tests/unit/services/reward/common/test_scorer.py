"""The text of a completion that verifiers read."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.reward.common.scorer import whole_text
from shoal.rollout import Prompt
from shoal.v1 import rollout_pb2


def prompt_of(text: str) -> Prompt:
    return Prompt("p:0", np.zeros(0, np.int32), text, ())


@pytest.mark.parametrize(("prompt", "text"), [("Why?\n<think>\n", "<think>Because."), ("Why?", "Because.")])
def test_a_completion_has_the_mark_of_the_thought_that_its_prompt_opens(prompt: str, text: str) -> None:
    assert whole_text(prompt_of(prompt), rollout_pb2.Completion(text="Because.")) == text


@pytest.mark.parametrize(
    ("marks", "text"), [(["<think>"], "<think>7"), (["<think>", ""], "7"), (["", "[THINK]"], "[THINK]7"), ([], "7")]
)
@pytest.mark.parametrize("prompt", ["Why?\n<think>\n", "Why?"])
def test_the_last_turn_of_an_episode_has_the_mark_of_the_thought_in_which_it_begins(
    prompt: str, marks: Sequence[str], text: str
) -> None:
    turns = [rollout_pb2.EpisodeTurn(opened_thought=mark) for mark in marks]
    completion = rollout_pb2.Completion(text="7", episode=rollout_pb2.Episode(turns=turns))
    assert whole_text(prompt_of(prompt), completion) == text
