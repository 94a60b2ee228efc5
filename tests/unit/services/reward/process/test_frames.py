"""Tests of messages over pipes."""

import io

from services.reward.process.frames import FrameBuffer, encode_frame, read_frame

MESSAGES = [{"text": "a\nb"}, {"text": "\ud800 ü 🐟", "label": [1.5, None, {"x": "y"}]}, {}]


def test_messages_are_decoded_from_pieces_of_any_size() -> None:
    data = b"".join(map(encode_frame, MESSAGES))
    for size in (1, 3, 7, len(data)):
        buffer = FrameBuffer()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in buffer.feed(piece)] == MESSAGES, size


def test_a_closed_pipe_reads_as_none() -> None:
    file = io.BytesIO(encode_frame(MESSAGES[0]))
    assert read_frame(file) == MESSAGES[0]
    assert read_frame(file) is None
