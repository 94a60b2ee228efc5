"""Runs of tokens are cut and joined without a loss."""

import numpy as np
import pytest

from shoal.rollout import Support, VersionSpan, WeightVersion
from shoal.token_run import NO_TOKENS, TokenRun, joined

OLD, NEW = WeightVersion(0, 3), WeightVersion(0, 4)


def whole(*, with_support: bool) -> TokenRun:
    """Tokens 10 to 15, the first four under the old version; token i has a support of 1 + i % 3 tokens."""
    counts = np.array([1, 2, 3, 1, 2, 3], np.int32)
    ids = [token + other for token, count in zip(range(10, 16), counts, strict=True) for other in range(count)]
    return TokenRun(
        np.arange(10, 16, dtype=np.int32),
        -np.arange(6, dtype=np.float32),
        (VersionSpan(OLD, 0, 4), VersionSpan(NEW, 4, 6)),
        Support(np.array(ids, np.int32), counts) if with_support else None,
    )


def same(a: TokenRun, b: TokenRun) -> bool:
    if (a.support is None) != (b.support is None) or a.version_spans != b.version_spans:
        return False
    pairs = [(a.token_ids, b.token_ids), (a.logprobs, b.logprobs)]
    if a.support is not None and b.support is not None:
        pairs += [(a.support.token_ids, b.support.token_ids), (a.support.counts, b.support.counts)]
    return all(x.tolist() == y.tolist() for x, y in pairs)


@pytest.mark.parametrize("with_support", [False, True])
def test_the_parts_of_a_run_joined_are_the_run(with_support: bool) -> None:
    run = whole(with_support=with_support)
    for first in range(7):
        for second in range(first, 7):
            parts = [run.part(0, first), run.part(first, second), run.part(second, 6)]
            assert same(joined(parts), run), f"cut at {first} and {second}"


def test_a_part_has_the_versions_of_its_own_tokens_counted_from_its_first() -> None:
    run = whole(with_support=False)
    assert run.part(3, 6).version_spans == (VersionSpan(OLD, 0, 1), VersionSpan(NEW, 1, 3))
    assert run.part(4, 6).version_spans == (VersionSpan(NEW, 0, 2),)
    assert run.part(2, 2).version_spans == ()


def test_nothing_joined_is_no_token() -> None:
    assert same(joined([]), NO_TOKENS) and same(joined([NO_TOKENS, NO_TOKENS]), NO_TOKENS)
