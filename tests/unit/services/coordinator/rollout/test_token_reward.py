from dataclasses import replace

import pytest

from services.coordinator.rollout.groups import TokenReward, token_rewards
from shoal.conversation import ChatMessage
from shoal.rollout import Episode, EpisodeTurn, FinishReason, GroundTruth
from shoal.scores import Score, ScoreOutcome, StepScore, VerifierScore
from tests.support.groups import PROMPT, settled_group, with_lengths

WORDS = ["Two ", "and ", "two ", "is ", "four", ""]
"""The text of each token; the last is a stop token."""


def text_of(token_ids: list[int]) -> str:
    return "".join(WORDS[token] for token in token_ids)


@pytest.mark.parametrize(("end_char", "token"), [(0, 0), (4, 0), (5, 1), (8, 1), (15, 3), (19, 4), (99, 5)])
def test_a_step_ends_with_the_token_that_makes_its_text_long_enough(end_char: int, token: int) -> None:
    settled = with_lengths(settled_group(0, [1.0]), [6])
    score = Score(
        0, ScoreOutcome.SCORED, 1.0, (VerifierScore("v", ScoreOutcome.SCORED, step_scores=(StepScore(end_char, 2.0),)),)
    )
    prompt = replace(PROMPT, ground_truths=(GroundTruth("v", 1, weight=0.5),))
    assert token_rewards(prompt, settled.completions[0], score, text_of) == (TokenReward(token, 1.0),)


def test_the_last_turn_in_time_is_scored_wherever_its_segment_stands() -> None:
    (completion,) = with_lengths(settled_group(0, [1.0]), [6]).completions
    message = ChatMessage("assistant", "")
    turns = (
        EpisodeTurn(0, 3, message, FinishReason.STOP, 0, number=2),
        EpisodeTurn(3, 6, message, FinishReason.STOP, 0, number=1),
    )
    episode = Episode(turns, "done", False, ScoreOutcome.SCORED)
    score = Score(
        0, ScoreOutcome.SCORED, 1.0, (VerifierScore("v", ScoreOutcome.SCORED, step_scores=(StepScore(8, 2.0),)),)
    )
    prompt = replace(PROMPT, ground_truths=(GroundTruth("v", 1),))
    assert token_rewards(prompt, replace(completion, episode=episode), score, text_of) == (TokenReward(1, 2.0),)
