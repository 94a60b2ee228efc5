"""Completions as messages: what is read is checked, and errors name the field."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import Completion, FinishReason, Support, VersionSpan, WeightVersion
from shoal.wire import completion_from_wire, completion_to_wire

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


def test_a_completion_names_the_weights_that_sampled_each_token() -> None:
    read = completion_from_wire(completion_to_wire(completion((0, 2), (2, 6))))
    assert read.oldest_version == VERSION and len(read.version_spans) == 2


@pytest.mark.parametrize("spans", [(), ((0, 5),), ((0, 2), (3, 6)), ((1, 6),), ((0, 7),), ((0, 8), (8, 6))])
def test_version_spans_that_do_not_cover_the_tokens_are_refused(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"completion\.version_spans"):
        completion_from_wire(completion_to_wire(completion(*spans)))


def supported(ids: list[int], counts: list[int]) -> Completion:
    return replace(completion((0, 6)), support=Support(np.array(ids, dtype=np.int32), np.array(counts, dtype=np.int32)))


def test_a_support_travels_with_its_completion() -> None:
    sent = supported([0, 9, 1, 2, 0, 3, 4, 5, 7, 8], [2, 1, 2, 1, 1, 3])
    read = completion_from_wire(completion_to_wire(sent)).support
    assert read is not None and sent.support is not None
    assert read.token_ids.tolist() == sent.support.token_ids.tolist()
    assert read.counts.tolist() == sent.support.counts.tolist()
    assert read.part(2, 6).token_ids.tolist() == [2, 0, 3, 4, 5, 7, 8], "the supports of the last four tokens"
    assert completion_from_wire(completion_to_wire(completion((0, 6)))).support is None


@pytest.mark.parametrize(
    ("ids", "counts", "message"),
    [
        ([0, 1, 2, 3, 4, 5], [1] * 5, "support_counts: has 5 values for 6 tokens"),
        ([0, 1, 2, 3, 4], [1, 1, 1, 1, 1, 0], r"support_counts: must be at least 1, .*\(given: 0\)"),
        ([0, 1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 2], r"support_token_ids: has 6 values, .* 7"),
        ([0, 1, 9, 2, 3, 4, 5], [1, 1, 2, 1, 1, 1], "the support of token 2 must begin with the token itself"),
        ([0, 1, 2, 3, 4, 5], [], "support_counts: has 0 values for 6 tokens"),
    ],
)
def test_a_support_that_is_not_of_the_tokens_is_refused(ids: list[int], counts: list[int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        completion_from_wire(completion_to_wire(supported(ids, counts)))
