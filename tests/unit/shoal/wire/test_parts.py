"""Parts and prefixes of completions as messages."""

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import Support, VersionSpan, WeightVersion
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.token_run import TokenRun, joined
from shoal.v1 import generator_pb2
from shoal.wire import part_from_wire, parts_to_wire, prefixes_from_wire, prefixes_to_wire


def run_of(num_tokens: int, support_tokens: int = 0) -> TokenRun:
    token_ids = np.arange(num_tokens, dtype=np.int32)
    support = None
    if support_tokens:
        ids = np.repeat(token_ids, support_tokens)
        support = Support(ids, np.full(num_tokens, support_tokens, np.int32))
    spans = (VersionSpan(WeightVersion(0, 3), 0, num_tokens),)
    return TokenRun(token_ids, np.full(num_tokens, -0.5, np.float32), spans, support)


def test_small_parts_of_a_group_are_one_message() -> None:
    (message,) = parts_to_wire([(index, 7, run_of(64)) for index in range(16)])
    read = [part_from_wire(part) for part in message]
    assert [(index, start, run.num_tokens) for index, start, run in read] == [(i, 7, 64) for i in range(16)]


@pytest.mark.parametrize("support_tokens", [0, 1024])
def test_parts_of_any_size_arrive_whole_in_messages_below_the_limit(support_tokens: int) -> None:
    parts = [(index, 5, run_of(300_000 if not support_tokens else 1500, support_tokens)) for index in range(3)]
    messages = list(parts_to_wire(parts))
    sizes = [generator_pb2.GenerateGroupResponse(parts=message).ByteSize() for message in messages]
    assert max(sizes) < MAX_MESSAGE_BYTES / 2, sizes
    for wanted, start, run in parts:
        pieces = [piece for message in messages for piece in map(part_from_wire, message) if piece[0] == wanted]
        at = start
        for _, begin, piece in pieces:
            assert begin == at, "a gap between two pieces"
            at += piece.num_tokens
        found = joined([piece for *_, piece in pieces])
        assert found.token_ids.tolist() == run.token_ids.tolist() and found.version_spans == run.version_spans
        if run.support is not None and found.support is not None:
            assert found.support.token_ids.tobytes() == run.support.token_ids.tobytes()


def test_a_part_whose_arrays_differ_in_length_is_refused() -> None:
    ((message,),) = parts_to_wire([(0, 0, run_of(3))])
    message.behavior_logprobs = message.behavior_logprobs[:-4]
    with pytest.raises(InvalidArgument, match=r"part\.behavior_logprobs: has 2 .* 3 "):
        part_from_wire(message)


def read(*prefixes: tuple[int, int]) -> dict[int, int]:
    messages = [
        generator_pb2.CompletionPrefix(sample_index=index, token_ids=b"\0\0\0\0" * count) for index, count in prefixes
    ]
    found = prefixes_from_wire(messages, num_completions=3, max_tokens=8)
    return {index: len(tokens) for index, tokens in found.items()}


def test_prefixes_are_read_as_they_were_written_and_empty_ones_left_out() -> None:
    written = prefixes_to_wire({0: np.arange(5, dtype=np.int32), 1: np.zeros(0, np.int32)})
    found = prefixes_from_wire(written, num_completions=3, max_tokens=8)
    assert {index: tokens.tolist() for index, tokens in found.items()} == {0: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ([(3, 1)], r"prefixes\[0\]\.sample_index: must be from 0 to 2.*given: 3"),
        ([(-1, 1)], r"given: -1"),
        ([(1, 1), (1, 2)], r"prefixes\[1\]\.sample_index: .*given: 1"),
        ([(0, 8)], r"prefixes\[0\]\.token_ids: has 8 tokens.* 8"),
    ],
)
def test_a_prefix_that_cannot_be_gone_on_from_is_refused(prefixes: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read(*prefixes)
