import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.grpo import bins
from shoal.grpo.bins import balanced_partition, fewest_bins

sizes_of_bins = st.lists(st.integers(0, 60), max_size=30)


@settings(max_examples=200, deadline=None)
@given(sizes=sizes_of_bins, capacity=st.integers(1, 80))
def test_every_item_is_in_one_bin_and_no_bin_is_too_full(sizes: list[int], capacity: int) -> None:
    found = fewest_bins(sizes, capacity)
    assert sorted(itertools.chain(*found)) == list(range(len(sizes)))
    for items in found:
        load = sum(sizes[item] for item in items)
        assert load <= capacity or len(items) == 1, f"{load} in a bin of {capacity}"


def test_the_search_saves_a_bin_that_greedy_rules_miss() -> None:
    # Best-fit decreasing needs three bins of 10: 6 + 3, 5 + 3 + 2, 2.
    sizes = [6, 5, 3, 2, 2, 2]
    assert len(fewest_bins(sizes, 10)) == 2
    perfect = [7, 3, 6, 4, 5, 3, 2, 9, 1, 8, 2, 4, 4, 2]
    assert len(fewest_bins(perfect, 10)) == sum(perfect) // 10


def test_a_search_that_must_fail_is_not_begun_for_items_of_about_a_third_of_a_bin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    monkeypatch.setattr(bins, "_search", lambda order, sizes, capacity, num_bins: searched.append(num_bins))
    sizes = [5200 + 7 * number for number in range(64)]
    assert sum(sizes) < 22 * 16384, "by their sum alone, 22 bins could be 21"
    assert len(fewest_bins(sizes, 16384)) == 22 and not searched, f"searched {searched}"


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=7), capacity=st.integers(8, 30))
def test_few_items_take_the_fewest_bins(sizes: list[int], capacity: int) -> None:
    sizes = [min(size, capacity) for size in sizes]
    found = len(fewest_bins(sizes, capacity))
    for fewer in range(1, found):
        for choice in itertools.product(range(fewer), repeat=len(sizes)):
            loads = [
                sum(size for size, part in zip(sizes, choice, strict=True) if part == number) for number in range(fewer)
            ]
            assert max(loads) > capacity, f"{found} bins, but {fewer} are enough: {choice}"


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=7), num_parts=st.integers(1, 3))
def test_the_heaviest_part_of_few_items_is_as_light_as_possible(sizes: list[int], num_parts: int) -> None:
    parts = balanced_partition(sizes, num_parts)
    assert sorted(itertools.chain(*parts)) == list(range(len(sizes)))
    got = max(sum(sizes[item] for item in items) for items in parts)
    best = min(
        max(
            sum(size for size, part in zip(sizes, choice, strict=True) if part == number) for number in range(num_parts)
        )
        for choice in itertools.product(range(num_parts), repeat=len(sizes))
    )
    assert got == best, f"heaviest part {got}, could be {best}"


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 500), max_size=80), num_parts=st.integers(1, 6))
def test_parts_of_equal_number_are_no_worse_than_dealing_in_order(sizes: list[int], num_parts: int) -> None:
    sizes = sizes[: len(sizes) // num_parts * num_parts]
    parts = balanced_partition(sizes, num_parts, same_count=True)
    assert sorted(itertools.chain(*parts)) == list(range(len(sizes)))
    assert {len(items) for items in parts} == {len(sizes) // num_parts}
    ordered = sorted(sizes, reverse=True)
    dealt = max(sum(ordered[start::num_parts]) for start in range(num_parts))
    got = max(sum(sizes[item] for item in items) for items in parts)
    assert got <= dealt, f"heaviest part {got}; dealing in order gives {dealt}"


def test_parts_of_equal_number_must_divide_the_items() -> None:
    with pytest.raises(ValueError, match=r"3 items .*2 parts"):
        balanced_partition([1, 2, 3], 2, same_count=True)
