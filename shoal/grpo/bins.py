"""Bin packing: items into as few bins as possible, or into a given number of parts of about equal weight.

Integers only. Both problems are NP-hard. Each answer comes from fast rules and a bounded search. It depends only on the
arguments, so every rank finds the same answer. A simpler packing (first-fit decreasing, longest item first) misses the
bounds that tests/golden/test_packing.py demands. Any other packing also changes the order of floating-point sums.
"""

import heapq
import math
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

_MAX_NODES = 20_000
"""The most nodes that a search visits, which takes about 20 ms."""
_MAX_DIFFERENCING = 200_000
"""Largest product of items and parts for which differencing is tried; the time of differencing grows with this product.
"""
_MAX_EXCHANGES = 1000
"""The most moves and swaps with which a partition is improved."""
_MAX_PARTNERS = 8
"""The number of lightest parts with which the heaviest part exchanges items."""
_MAX_PAIRS = 20_000
"""The most pairs of items that are examined for one swap."""
_MAX_EXACT = 16
"""The most items for which the best partition is searched, within `_MAX_NODES`."""


def fewest_bins(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs items into as few bins as possible; returns the indices of the items in each bin.

    An item larger than `capacity` has a bin for itself. The result is the better of two packings: best-fit decreasing,
    and "minimum bin slack" (Gupta and Ho 1999), which fills one bin after another as full as possible (an exact subset
    sum around the largest item left). If neither reaches the lower bound, a bounded search tries fewer bins.
    """
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    alone = [[item] for item in order if sizes[item] >= capacity]
    order = order[len(alone) :]
    bound = _lower_bound([sizes[item] for item in order], capacity)
    bins = _best_fit(order, sizes, capacity)
    if len(bins) > bound:
        bins = min(bins, _fill_one_by_one(order, sizes, capacity), key=len)
    while len(bins) > bound and (found := _search(order, sizes, capacity, len(bins) - 1)) is not None:
        bins = found
    return alone + bins


def balanced_partition(sizes: Sequence[int], num_parts: int, *, same_count: bool = False) -> list[list[int]]:
    """Splits items into parts whose heaviest is about as light as possible; returns the indices in each part.

    Two partitions are computed: one gives the longest item first to the lightest part; the other, unless the first is
    perfect, uses the largest differencing method (Karmarkar and Karp 1982). Moves and swaps between the heaviest part
    and other parts improve each partition, and the better partition is the result. With `same_count` all parts have the
    same number of items. Then `num_parts` must divide the number of items; otherwise ValueError is raised.
    """
    if same_count and len(sizes) % num_parts:
        raise ValueError(f"{len(sizes)} items cannot be split into {num_parts} parts of equal number")
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    best = _improved(longest_first(order, sizes, num_parts, same_count=same_count), sizes, same_count)
    heaviest = _heaviest(best, sizes)
    if heaviest > math.ceil(sum(sizes) / num_parts) and len(sizes) * num_parts <= _MAX_DIFFERENCING:
        other = _improved(_differencing(order, sizes, num_parts, same_count), sizes, same_count)
        best = other if _heaviest(other, sizes) < heaviest else best
    return _best_partition(order, sizes, best, same_count) if len(order) <= _MAX_EXACT else best


def _lower_bound(sizes: Sequence[int], capacity: int) -> int:
    """Returns a lower bound of the number of bins (Martello and Toth's L2).

    For each threshold k: an item above capacity - k shares its bin with nothing of size k or more, no two items above
    half the capacity share a bin, and small items that do not fit into these bins need more bins. Items of about equal
    size have a better bound: of the items from the i-th smallest on, a bin has at most as many as the smallest of them.
    """
    sizes_S = np.sort(np.array(sizes, dtype=np.int64))
    sums = np.concatenate([[0], np.cumsum(sizes_S)])
    half = int(np.searchsorted(sizes_S, capacity // 2, side="right"))
    thresholds = sizes_S[:half]
    first_large = np.searchsorted(sizes_S, capacity - thresholds, side="right")
    small = sums[half] - sums[np.searchsorted(sizes_S, thresholds)]
    room_of_middle = (first_large - half) * capacity - (sums[first_large] - sums[half])
    needed = len(sizes) - half - (room_of_middle - small).clip(max=0) // capacity  # Rounds up, since it subtracts.
    at_most = np.searchsorted(sums, sums[:-1] + capacity, side="right") - 1 - np.arange(len(sizes))
    of_equals = -(-np.arange(len(sizes), 0, -1) // at_most)
    more_than_half = len(sizes) - int(np.searchsorted(2 * sizes_S, capacity, side="right"))
    bounds: list[int] = [*needed.tolist(), *of_equals.tolist()]
    return max(math.ceil(int(sums[-1]) / capacity), more_than_half, *bounds)


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


def _search(order: Sequence[int], sizes: Sequence[int], capacity: int, num_bins: int) -> list[list[int]] | None:
    """Searches depth first for a packing into `num_bins` bins. The result is None if there is no such packing, or if
    the limit of nodes is reached.

    Each item, largest first, is tried in every bin in turn, fullest bin first. Of several bins with equal room only one
    is tried.
    """
    rooms = [capacity] * num_bins
    bin_of = [-1] * len(order)
    spare = num_bins * capacity - sum(sizes[item] for item in order)
    smallest = sizes[order[-1]] if order else 0
    num_nodes = 0
    tried: list[list[int]] = []
    wasted = 0
    waste: list[int] = []
    depth = 0
    while depth < len(order):
        size = sizes[order[depth]]
        if len(tried) == depth:
            by_room = {room: index for index, room in enumerate(rooms) if room >= size}
            tried.append([by_room[room] for room in sorted(by_room, reverse=True)])
            waste.append(0)
        if bin_of[depth] >= 0:  # The search came back: the last choice failed.
            rooms[bin_of[depth]] += size
            wasted -= waste[depth]
            bin_of[depth] = -1
        num_nodes += 1
        if num_nodes > _MAX_NODES:
            return None
        if tried[depth]:
            index = tried[depth].pop()
            rooms[index] -= size
            # Room that is too small for the smallest item is wasted.
            waste[depth] = rooms[index] if rooms[index] < smallest else 0
            wasted += waste[depth]
            bin_of[depth] = index
            if wasted <= spare:
                depth += 1
            continue
        tried.pop()
        waste.pop()
        depth -= 1
        if depth < 0:
            return None
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for item, index in zip(order, bin_of, strict=True):
        bins[index].append(item)
    return [items for items in bins if items]


def longest_first(
    order: Sequence[int], sizes: Sequence[int], num_parts: int, *, same_count: bool = False
) -> list[list[int]]:
    """Gives each item of `order` (longest first) to the part that is lightest so far."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    heap = [(0, part) for part in range(num_parts)]
    max_items = len(order) // num_parts if same_count else len(order)
    for item in order:
        load, part = heapq.heappop(heap)
        parts[part].append(item)
        if len(parts[part]) < max_items:
            heapq.heappush(heap, (load + sizes[item], part))
    return parts


def _differencing(order: Sequence[int], sizes: Sequence[int], num_parts: int, same_count: bool) -> list[list[int]]:
    """Merges the two partial partitions whose parts differ most, heavy parts with light parts, until one partition is
    left."""
    step = num_parts if same_count else 1
    # The parts of a partial partition with the negative weight of each, heaviest first; empty parts are left out.
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for number, start in enumerate(range(0, len(order), step)):
        parts = sorted(((-sizes[item], [item]) for item in order[start : start + step]), key=itemgetter(0))
        heap.append((_spread(parts, num_parts), number, parts))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        second.reverse()
        num_shared = max(0, len(first) + len(second) - num_parts)
        num_alone = len(first) - num_shared
        shared = zip(first[num_alone:], second[:num_shared], strict=True)
        joined = first[:num_alone]
        joined += [(a + b, ours + theirs) for (a, ours), (b, theirs) in shared]
        joined += second[num_shared:]
        joined.sort(key=itemgetter(0))
        number += 1
        heapq.heappush(heap, (_spread(joined, num_parts), number, joined))
    found = [items for _, items in heap[0][2]] if heap else []
    return found + [[] for _ in range(num_parts - len(found))]


def _spread(parts: Sequence[tuple[int, list[int]]], num_parts: int) -> int:
    """Returns the negative difference between the heaviest and the lightest of `num_parts` parts."""
    return parts[0][0] - (parts[-1][0] if len(parts) == num_parts else 0)


def _improved(parts: Sequence[Sequence[int]], sizes: Sequence[int], same_count: bool) -> list[list[int]]:
    """Improves a partition by moves and swaps that make the heavier of two parts lighter, until there is no such move
    or swap."""
    result = [list(items) for items in parts]
    loads = np.array([sum(sizes[item] for item in items) for items in result], dtype=np.int64)
    for _ in range(_MAX_EXCHANGES):
        exchange = _best_exchange(result, sizes, loads, same_count)
        if exchange is None:
            return result
        heavy, ours, light, theirs = exchange
        result[heavy].remove(ours)
        result[light].append(ours)
        moved = sizes[ours]
        if theirs is not None:
            result[light].remove(theirs)
            result[heavy].append(theirs)
            moved -= sizes[theirs]
        loads[heavy] -= moved
        loads[light] += moved
    return result


def _best_exchange(
    parts: Sequence[Sequence[int]], sizes: Sequence[int], loads: npt.NDArray[np.int64], same_count: bool
) -> tuple[int, int, int, int | None] | None:
    """Finds the exchange after which the heavier of its two parts is lightest: the heaviest part, its item, the other
    part, and the item that comes back (None in a move). Returns None if no exchange makes the heaviest part lighter."""
    heavy = int(loads.argmax())
    ours = parts[heavy]
    partners: list[tuple[int, int | None]] = []
    lights = loads.argsort(kind="stable")[:_MAX_PARTNERS].tolist()
    for light in lights:
        theirs = [*parts[light], *(() if same_count else (None,))]
        if light != heavy and len(ours) * len(theirs) <= _MAX_PAIRS:
            partners += [(light, item) for item in theirs]
    if not partners or not ours:
        return None
    backs = np.array([0 if item is None else sizes[item] for _, item in partners])
    moved = np.array([sizes[item] for item in ours])[:, None] - backs
    after = np.maximum(loads[[light for light, _ in partners]] + moved, loads[heavy] - moved)
    least = after.min()
    if least >= loads[heavy]:
        return None
    mine, other = min(np.argwhere(after == least).tolist(), key=lambda pair: (lights.index(partners[pair[1]][0]), pair))
    return heavy, ours[mine], *partners[other]


def _best_partition(
    order: Sequence[int], sizes: Sequence[int], parts: Sequence[Sequence[int]], same_count: bool
) -> list[list[int]]:
    """Searches depth first for a better partition, lightest part first. Of several parts with equal load and count only
    one is tried."""
    best = [list(items) for items in parts]
    limit = _heaviest(parts, sizes)
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


def _heaviest(parts: Sequence[Sequence[int]], sizes: Sequence[int]) -> int:
    return max((sum(sizes[item] for item in items) for items in parts), default=0)
