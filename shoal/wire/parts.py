"""Parts of completions, and the prefixes that completions continue, as messages."""

from collections.abc import Iterable, Iterator, Mapping

from shoal.arrays import Int32Array
from shoal.token_run import TokenRun
from shoal.v1 import generator_pb2
from shoal.wire.arrays import float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.completions import run_from_wire, spans_to_wire
from shoal.wire.fields import invalid

_MESSAGE_BYTES = 1 << 20
"""The size in bytes of the parts in one message: a quarter of the largest message."""


def parts_to_wire(parts: Iterable[tuple[int, int, TokenRun]]) -> Iterator[list[generator_pb2.CompletionPart]]:
    """Yields the parts of each message. A part is (sample index, number of tokens before it, tokens)."""
    message: list[generator_pb2.CompletionPart] = []
    num_bytes = 0
    for index, start, run in parts:
        for piece_start, piece in _pieces(start, run):
            if message and num_bytes + piece.num_bytes > _MESSAGE_BYTES:
                yield message
                message, num_bytes = [], 0
            message.append(_part_to_wire(index, piece_start, piece))
            num_bytes += piece.num_bytes
    if message:
        yield message


def _pieces(start: int, run: TokenRun) -> Iterator[tuple[int, TokenRun]]:
    """Yields a run in pieces that fit into a message."""
    if run.num_bytes <= _MESSAGE_BYTES or run.num_tokens < 2:
        yield start, run
        return
    half = run.num_tokens // 2
    yield from _pieces(start, run.part(0, half))
    yield from _pieces(start + half, run.part(half, run.num_tokens))


def _part_to_wire(index: int, start: int, run: TokenRun) -> generator_pb2.CompletionPart:
    return generator_pb2.CompletionPart(
        sample_index=index,
        start=start,
        token_ids=int32_to_wire(run.token_ids),
        behavior_logprobs=float32_to_wire(run.logprobs),
        version_spans=spans_to_wire(run.version_spans),
        support_token_ids=b"" if run.support is None else int32_to_wire(run.support.token_ids),
        support_counts=b"" if run.support is None else int32_to_wire(run.support.counts),
    )


def part_from_wire(message: generator_pb2.CompletionPart) -> tuple[int, int, TokenRun]:
    """Reads a part: sample index, number of tokens before it, tokens."""
    return message.sample_index, message.start, run_from_wire(message, "part")


def prefixes_to_wire(prefixes: Mapping[int, Int32Array]) -> list[generator_pb2.CompletionPrefix]:
    """Makes the messages of prefixes, given by sample index; empty prefixes are left out."""
    return [
        generator_pb2.CompletionPrefix(sample_index=index, token_ids=int32_to_wire(token_ids))
        for index, token_ids in prefixes.items()
        if len(token_ids)
    ]


def prefixes_from_wire(
    messages: Iterable[generator_pb2.CompletionPrefix], *, num_completions: int, max_tokens: int
) -> dict[int, Int32Array]:
    """Reads prefixes, by sample index. A prefix must be shorter than `max_tokens`, the limit of a completion."""
    prefixes: dict[int, Int32Array] = {}
    for position, message in enumerate(messages):
        field = f"prefixes[{position}]"
        token_ids = int32_from_wire(message.token_ids, f"{field}.token_ids")
        if not 0 <= message.sample_index < num_completions or message.sample_index in prefixes:
            raise invalid(
                f"{field}.sample_index",
                f"must be from 0 to {num_completions - 1}, and differ between prefixes (given: {message.sample_index})",
            )
        if len(token_ids) >= max_tokens:
            raise invalid(
                f"{field}.token_ids",
                f"has {len(token_ids)} tokens, but must have fewer than the limit of {max_tokens}",
            )
        prefixes[message.sample_index] = token_ids
    return prefixes
