"""Bin packing: items into as few bins as possible, or into a given number of parts of about equal weight.

Integers only. Both problems are NP-hard. Each answer comes from fast rules, and a partition of few items also from a
bounded search. The answer depends only on the arguments, so every rank finds the same answer.
"""

import heapq
import math
from collections.abc import Sequence

_MAX_EXACT = 16
"""The most items for which the best partition is searched."""
_MAX_NODES = 20_000
"""The most nodes that the search visits, which takes about 20 ms."""


def fewest_bins(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs items into as few bins as possible; returns the indices of the items in each bin.

    An item above `capacity` has a bin for itself. Takes the better of best-fit decreasing and of filling one bin after
    the other as full as possible (a subset sum around the largest item left: "minimum bin slack", Gupta and Ho 1999).
    """
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    alone = [[item] for item in order if sizes[item] >= capacity]
    order = order[len(alone) :]
    bins = _best_fit(order, sizes, capacity)
    if len(bins) * capacity - sum(sizes[item] for item in order) >= capacity:
        bins = min(bins, _fill_one_by_one(order, sizes, capacity), key=len)
    return alone + bins


def balanced_partition(sizes: Sequence[int], num_parts: int, *, same_count: bool = False) -> list[list[int]]:
    """Splits items into parts whose heaviest is about as light as possible; returns the indices in each part.

    Gives the longest item first to the lightest part, and searches few items for the best partition. With `same_count`
    all parts have the same number of items; raises ValueError if `num_parts` does not divide the number.
    """
    if same_count and len(sizes) % num_parts:
        raise ValueError(f"{len(sizes)} items cannot be split into {num_parts} parts of equal number")
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    parts = longest_first(order, sizes, num_parts, same_count=same_count)
    return _best_partition(order, sizes, parts, same_count) if len(order) <= _MAX_EXACT else parts


def _best_fit(order: Sequence[int], sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts each item, largest first, into the bin where the item leaves the least room."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in order:
        fitting = [index for index, room in enumerate(rooms) if room >= sizes[item]]
        if fitting:
            index = min(fitting, key=rooms.__getitem__)
            bins[index].append(item)
            rooms[index] -= sizes[item]
        else:
            bins.append([item])
            rooms.append(capacity - sizes[item])
    return bins


def _fill_one_by_one(order: Sequence[int], sizes: Sequence[int], capacity: int) -> list[list[int]]:
    rest = list(order)
    bins = []
    while rest:
        first, *others = rest
        chosen = _fullest_subset([sizes[item] for item in others], capacity - sizes[first])
        bins.append([first, *(others[index] for index in chosen)])
        taken = set(chosen)
        rest = [item for index, item in enumerate(others) if index not in taken]
    return bins


def _fullest_subset(sizes: Sequence[int], room: int) -> list[int]:
    """Returns the indices of items whose sum is the largest that fits; large items first.

    Bit s of `sums[i]` is set if some of the first i items sum to s.
    """
    within = (1 << (room + 1)) - 1
    sums = [1]
    for size in sizes:
        sums.append((sums[-1] | (sums[-1] << size)) & within)
        if sums[-1] >> room:
            break
    total = sums[-1].bit_length() - 1
    chosen = []
    for index in range(len(sums) - 2, -1, -1):
        if not sums[index] >> total & 1:
            chosen.append(index)
            total -= sizes[index]
    return chosen


def longest_first(
    order: Sequence[int], sizes: Sequence[int], num_parts: int, *, same_count: bool = False
) -> list[list[int]]:
    """Gives each item of `order`, longest first, to the part that is the lightest so far."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    heap = [(0, part) for part in range(num_parts)]
    max_items = len(order) // num_parts if same_count else len(order)
    for item in order:
        load, part = heapq.heappop(heap)
        parts[part].append(item)
        if len(parts[part]) < max_items:
            heapq.heappush(heap, (load + sizes[item], part))
    return parts


def _best_partition(
    order: Sequence[int], sizes: Sequence[int], parts: Sequence[Sequence[int]], same_count: bool
) -> list[list[int]]:
    """Searches depth first for a better partition, lightest part first. Parts of equal load and count count as one."""
    best = [list(items) for items in parts]
    limit = max(sum(sizes[item] for item in items) for items in parts)
    floor = math.ceil(sum(sizes) / len(parts))
    max_items = len(order) // len(parts) if same_count else len(order)
    loads = [0] * len(parts)
    current: list[list[int]] = [[] for _ in parts]
    num_nodes = 0

    def assign(depth: int) -> None:
        nonlocal best, limit, num_nodes
        if depth == len(order):
            best, limit = [list(items) for items in current], max(loads)
            return
        item, seen = order[depth], set()
        for part in sorted(range(len(loads)), key=loads.__getitem__):
            alike = (loads[part], len(current[part]))
            num_nodes += 1
            if limit <= floor or num_nodes > _MAX_NODES or loads[part] + sizes[item] >= limit:
                return
            if alike in seen or len(current[part]) == max_items:
                continue
            seen.add(alike)
            loads[part] += sizes[item]
            current[part].append(item)
            assign(depth + 1)
            current[part].pop()
            loads[part] -= sizes[item]

    assign(0)
    return best
