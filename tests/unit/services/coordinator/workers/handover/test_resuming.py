"""A completion with stop strings goes on only where no stop string can have begun."""

import numpy as np
import pytest

from services.coordinator.workers.handover.resuming import resumable_tokens

STOPS = ("</answer>", "\n\n")


def resumable(text: str, *stops: str) -> str:
    """Each character is a token."""
    tokens = np.array([ord(character) for character in text], np.int32)
    return text[: resumable_tokens(tokens, stops, lambda ids: "".join(map(chr, ids)))]


def test_without_stop_strings_a_completion_goes_on_after_all_its_tokens() -> None:
    assert resumable("one <") == "one <"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("one two", "one two"),
        ("one <", "one "),
        ("one </answe", "one "),
        ("one </answers", "one </answers"),
        ("one\n", "one"),
        ("a << </", "a << "),
        ("half a character \ufffd", "half a character "),
        ("", ""),
    ],
)
def test_the_text_before_the_place_ends_with_no_beginning_of_a_stop_string(text: str, kept: str) -> None:
    assert resumable(text, *STOPS) == kept


def test_a_stop_string_is_found_wherever_the_completion_was_cut() -> None:
    whole = "x <</ans</answer"
    for end in range(len(whole)):
        kept = resumable(whole[:end], "</answer>")
        rest = whole[len(kept) :] + ">"
        assert "</answer>" in rest, f"cut at {end}, gone on after {kept!r}: the stop string is in neither part"


def test_a_completion_without_such_a_place_is_sampled_from_its_beginning() -> None:
    assert resumable("<" * 200, *STOPS) == ""
    assert resumable("x" + "<" * 40, *STOPS) == "x"
