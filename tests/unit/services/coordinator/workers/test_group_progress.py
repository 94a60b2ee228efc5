"""A group goes on from what was delivered of it: whole, with the versions and the places of every token."""

import numpy as np
import pytest

from services.coordinator.workers.group_progress import GroupProgress, resumable_tokens, whole_prefix
from shoal.errors import Internal
from shoal.rollout import Completion, FinishReason, Support, VersionSpan, WeightVersion
from shoal.token_run import TokenRun

OLD, NEW = WeightVersion(0, 3), WeightVersion(0, 4)
LIMIT = 100
STOPS = ("</answer>", "\n\n")


def run(first: int, count: int, version: WeightVersion = OLD) -> TokenRun:
    ids = np.arange(first, first + count, dtype=np.int32)
    support = Support(np.repeat(ids, 2), np.full(count, 2, np.int32))
    return TokenRun(ids, -ids.astype(np.float32), (VersionSpan(version, 0, count),), support)


def finished(first: int, count: int, version: WeightVersion = OLD, place: int = 0) -> Completion:
    part = run(first, count, version)
    return Completion(
        place, part.token_ids, part.logprobs, FinishReason.STOP, part.version_spans, seed=0, support=part.support
    )


def prefixes(progress: GroupProgress, limit: int = LIMIT) -> dict[int, list[int]]:
    return {index: tokens.tolist() for index, tokens in progress.begin_call(whole_prefix, limit).items()}


def test_a_completion_that_three_generators_sampled_is_one_with_the_versions_of_each() -> None:
    progress = GroupProgress([7, 8])
    assert prefixes(progress) == {0: [], 1: []}
    progress.report(1, 0, run(0, 2))
    progress.report(1, 2, run(2, 1))
    assert prefixes(progress) == {0: [], 1: [0, 1, 2]}
    progress.report(1, 0, run(3, 2, NEW))
    assert progress.num_prefix_tokens == 5
    assert prefixes(progress) == {0: [], 1: [0, 1, 2, 3, 4]}
    whole = progress.whole(finished(5, 2, NEW, place=1), num_prefix_tokens=5)
    progress.finish(whole)
    assert (whole.sample_index, whole.seed, whole.token_ids.tolist()) == (1, 8, list(range(7)))
    assert whole.behavior_logprobs.tolist() == [-float(token) for token in range(7)]
    assert whole.version_spans == (VersionSpan(OLD, 0, 3), VersionSpan(NEW, 3, 7))
    assert whole.oldest_version == OLD, "staleness counts from the tokens of the generator that is gone"
    assert whole.support is not None and whole.support.token_ids.tolist() == [t for t in range(7) for _ in range(2)]
    assert progress.missing == [0] and progress.in_order == [whole] and progress.num_prefix_tokens == 0


def test_a_generator_that_knows_no_prefixes_has_sampled_the_whole_completion() -> None:
    progress = GroupProgress([7])
    progress.report(0, 0, run(0, 3))
    prefixes(progress)
    assert progress.whole(finished(50, 4), num_prefix_tokens=0).token_ids.tolist() == [50, 51, 52, 53]


def test_a_repeated_report_adds_nothing_and_a_gap_is_an_error() -> None:
    progress = GroupProgress([7])
    for start, count in ((0, 3), (0, 3), (2, 3)):
        progress.report(0, start, run(start, count))
    with pytest.raises(Internal, match="token 6 of sample 0"):
        progress.report(0, 6, run(6, 1))
    assert prefixes(progress) == {0: [0, 1, 2, 3, 4]}


def test_what_cannot_be_gone_on_from_is_sampled_again() -> None:
    progress = GroupProgress([7])
    progress.report(0, 0, run(0, 10))
    found = progress.begin_call(lambda tokens: len(tokens) // 2, LIMIT)
    assert found[0].tolist() == [0, 1, 2, 3, 4]
    assert progress.whole(finished(70, 1), 5).num_tokens == 6
    assert prefixes(progress, limit=4) == {0: [0, 1, 2]}, "one token is left to sample"


def test_the_prefixes_of_a_request_fit_into_a_message() -> None:
    progress = GroupProgress(range(64))
    for index in range(64):
        progress.report(index, 0, run(0, 32_768))
    sizes = [len(tokens) for tokens in progress.begin_call(whole_prefix, 40_000).values()]
    assert set(sizes) == {8192}, "each gets an equal share of 2 MiB"


def test_the_version_of_everything_that_was_delivered_is_known() -> None:
    progress = GroupProgress([7, 8, 9])
    assert progress.is_of(NEW), "nothing is of every version"
    progress.finish(finished(0, 3, OLD, place=0))
    assert progress.is_of(OLD) and not progress.is_of(NEW)
    progress.report(1, 0, run(0, 1, NEW))
    assert not progress.is_of(OLD)
    prefixes(progress)
    assert not progress.is_of(OLD)


def test_a_group_has_come_as_far_as_its_unfinished_completion_with_the_fewest_tokens() -> None:
    progress = GroupProgress([7, 8])
    seen = [progress.num_tokens_of_shortest]
    for index, count in ((0, 5), (1, 3)):
        progress.report(index, 0, run(0, count))
        seen.append(progress.num_tokens_of_shortest)
    prefixes(progress)
    progress.report(1, 0, run(3, 1))
    seen.append(progress.num_tokens_of_shortest)
    for index in (1, 0):
        progress.finish(finished(0, 6, place=index))
        seen.append(progress.num_tokens_of_shortest)
    assert seen == [0, 0, 3, 4, 5, 0], seen


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
