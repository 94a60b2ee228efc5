"""Tests of the order of prompts, and of held-out prompts."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.data import PromptSet, held_out_prompts
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt
from tests.support.wordings import numbers_in


def prompt_set(questions: list[str], seed: int = 0, shuffle: bool = True) -> PromptSet:
    prompts = [Prompt(f"s:{number}", np.array([1], np.int32), text, ()) for number, text in enumerate(questions)]
    return PromptSet(prompts=prompts, questions=questions, seed=seed, shuffle=shuffle)


def order(prompts: PromptSet, start: int, stop: int) -> list[str]:
    return [prompts.at(index).prompt_id for index in range(start, stop)]


def test_each_pass_visits_every_prompt_once_in_a_different_order() -> None:
    prompts = prompt_set([str(number) for number in range(50)])
    passes = [order(prompts, start, start + 50) for start in (0, 50, 100)]
    assert all(sorted(visited) == sorted(passes[0]) and len(set(visited)) == 50 for visited in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_the_position_is_the_whole_state() -> None:
    questions = [str(number) for number in range(7)]
    walked = order(prompt_set(questions), 0, 100)
    jumped = [prompt_set(questions).at(position).prompt_id for position in reversed(range(100))]
    assert walked == jumped[::-1]


def test_another_seed_gives_another_order() -> None:
    questions = [str(number) for number in range(50)]
    assert order(prompt_set(questions, seed=1), 0, 50) != order(prompt_set(questions, seed=2), 0, 50)


def test_the_order_equals_that_of_earlier_releases() -> None:
    """A resumed run must continue in its original order, so these values may never change."""
    visited = order(prompt_set([str(number) for number in range(6)], seed=7), 0, 12)
    assert visited == [f"s:{number}" for number in [5, 4, 3, 1, 0, 2, 0, 4, 5, 3, 2, 1]]


def test_without_shuffling_prompts_are_in_file_order() -> None:
    assert order(prompt_set(["a", "b", "c"], shuffle=False), 0, 5) == ["s:0", "s:1", "s:2", "s:0", "s:1"]


def test_a_position_before_the_first_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        prompt_set(["a"]).at(-1)


def test_held_out_prompts_contain_no_training_question_and_no_duplicate() -> None:
    held_out = held_out_prompts(prompt_set(["a", "x", "b", "x", "y", "z"]), ["a", "b"], 2)
    assert [prompt.text for prompt in held_out.prompts] == ["x", "y"]
    assert held_out.left_out == {"trained_on": 2, "repeated": 1} and not held_out.lacks_questions


def test_questions_that_are_left_out_are_counted_by_the_reason() -> None:
    candidates = replace(prompt_set(["a", "x", "x", "y"]), num_dropped_too_long=3)
    held_out = held_out_prompts(candidates, ["a"], 40)
    assert held_out.left_out == {"trained_on": 1, "repeated": 1, "too_long": 3} and held_out.lacks_questions
    assert numbers_in(str(held_out))[:4] == ["2", "40", "5", "1"] and "evaluation.num_prompts" in str(held_out)
    unusable = held_out.without("malformed_label", {held_out.prompts[0].prompt_id}).without("too_long", ())
    assert [prompt.text for prompt in unusable.prompts] == ["y"]
    assert unusable.left_out == {**held_out.left_out, "malformed_label": 1}


def test_a_short_file_of_which_all_is_asked_leaves_nothing_out() -> None:
    held_out = held_out_prompts(prompt_set(["x", "y"]), ["a"], 40)
    assert (held_out.left_out, held_out.lacks_questions) == ({}, False)


def test_an_evaluation_without_held_out_questions_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"all 2 questions"):
        held_out_prompts(prompt_set(["a", "b"]), ["a", "b", "c"], 2)
