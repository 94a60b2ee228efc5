"""Completions as messages: what is read is checked, and errors name the field."""

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import Completion, FinishReason, VersionSpan, WeightVersion
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
