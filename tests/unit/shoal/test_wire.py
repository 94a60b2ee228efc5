"""What is read from messages is checked, by the name of the field."""

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import (
    ChatMessage,
    Completion,
    FinishReason,
    GroundTruth,
    Prompt,
    RewardPart,
    SamplingParams,
    Score,
    ScoreOutcome,
    StepScore,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)
from shoal.wire import (
    batch_from_wire,
    batch_to_wire,
    completion_from_wire,
    completion_to_wire,
    prompt_from_wire,
    prompt_to_wire,
    sampling_from_wire,
    sampling_to_wire,
    score_from_wire,
    score_to_wire,
)
from tests.train_batches import make_batch

VERSION = WeightVersion(0, 3)


def completion(*spans: tuple[int, int]) -> Completion:
    return Completion(
        sample_index=0,
        token_ids=np.arange(6, dtype=np.int32),
        behavior_logprobs=np.full(6, -1, dtype=np.float32),
        finish_reason=FinishReason.STOP,
        version_spans=tuple(VersionSpan(VERSION, start, end) for start, end in spans),
        seed=1,
    )


def test_a_prompt_arrives_as_it_left() -> None:
    messages = (ChatMessage("system", "be brief"), ChatMessage("user", "2 + 2?"))
    truth = GroundTruth("general-quality_ref", {"a": ["4"]}, 0.5)
    sent = Prompt("test:0", np.arange(3, dtype=np.int32), "<s>2 + 2?", (truth,), messages)
    read = prompt_from_wire(prompt_to_wire(sent))
    assert read.token_ids.tolist() == [0, 1, 2]
    assert replace(read, token_ids=sent.token_ids) == sent


def test_a_completion_says_which_weights_sampled_each_token() -> None:
    read = completion_from_wire(completion_to_wire(completion((0, 2), (2, 6))))
    assert read.oldest_version == VERSION and len(read.version_spans) == 2


@pytest.mark.parametrize("spans", [(), ((0, 5),), ((0, 2), (3, 6)), ((1, 6),), ((0, 7),), ((0, 8), (8, 6))])
def test_version_spans_that_do_not_cover_the_tokens_are_refused(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"completion\.version_spans"):
        completion_from_wire(completion_to_wire(completion(*spans)))


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_that_the_engine_would_replace_or_refuse_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.temperature: must be from 0\.01 to 2"):
        sampling_from_wire(sampling_to_wire(SamplingParams(temperature, 4, ())))
    sampling_from_wire(sampling_to_wire(SamplingParams(0.0, 4, ())))


def test_stop_strings_travel_with_the_sampling_and_an_empty_one_is_refused() -> None:
    sampling = SamplingParams(1.0, 4, (2,), stop_strings=("</answer>", "\n\n"))
    assert sampling_from_wire(sampling_to_wire(sampling)) == sampling
    with pytest.raises(InvalidArgument, match=r"sampling\.stop_strings: must not be empty"):
        sampling_from_wire(sampling_to_wire(SamplingParams(1.0, 4, (), stop_strings=("</answer>", ""))))


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_a_temperature_is_a_finite_number(temperature: float) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.temperature"):
        sampling_from_wire(sampling_to_wire(SamplingParams(temperature, 4, ())))
    header, *rest = batch_to_wire(make_batch())
    header.header.temperature = temperature
    with pytest.raises(InvalidArgument, match=r"header\.temperature"):
        batch_from_wire([header, *rest])


def test_a_score_is_read_back_with_the_scores_of_its_steps() -> None:
    steps = (StepScore(7, 0.25), StepScore(19, 1.0))
    part = VerifierScore("process", ScoreOutcome.SCORED, 0.5, "two steps", 0.1, steps, "3fa2")
    score = Score(3, ScoreOutcome.SCORED, 0.5, (part,), (RewardPart("verifiable", 1.5), RewardPart("overlong", -1.0)))
    assert score_from_wire(score_to_wire(score)) == score
