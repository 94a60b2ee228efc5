"""Items into bins: as few bins as can be, or a given number of parts that weigh about the same. Integers only.

Both problems are NP-hard; both answers come of fast rules with a bounded search behind them, and depend on nothing
but the arguments, so that every rank finds the same.
"""

import heapq
import math
from collections.abc import Sequence

_MAX_NODES = 20_000
"""Places that the search of `fewest_bins` tries; about 20 ms."""
_MAX_DIFFERENCING = 200_000
"""Items x parts up to which differencing is tried; its time grows with that product."""
_MAX_EXCHANGES = 1000
"""Moves and swaps that improve a partition."""
_MAX_PARTNERS = 8
"""Parts, the lightest, that the heaviest one exchanges with."""
_MAX_PAIRS = 20_000
"""Pairs of items looked at for one swap."""
_MAX_EXACT = 16
"""Items up to which the best partition itself is searched for, within `_MAX_NODES`."""


def fewest_bins(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of the items in each bin. An item larger than `capacity` has a bin for itself.

    Takes the better of best-fit decreasing and of filling one bin after the other as full as can be (an exact subset
    sum around the largest item left; "minimum bin slack", Gupta and Ho 1999); if neither reaches the lower bound,
    searches for one bin less within a bounded number of nodes.
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
    """Indices of the items in each part; the heaviest part is about as light as can be.

    The better of the longest item first to the lightest part, and of the largest differencing method (Karmarkar and
    Karp 1982), each improved by moves and swaps between the heaviest part and others. With `same_count` all parts
    hold the same number of items: `num_parts` has to divide it.
    """
    if same_count and len(sizes) % num_parts:
        raise ValueError(f"{len(sizes)} items cannot be {num_parts} parts of the same number")
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    starts = [_longest_first(order, sizes, num_parts, same_count)]
    if len(sizes) * num_parts <= _MAX_DIFFERENCING:
        starts.append(_differencing(order, sizes, num_parts, same_count))
    best = min((_improved(parts, sizes, same_count) for parts in starts), key=lambda parts: _heaviest(parts, sizes))
    return _best_partition(order, sizes, best, same_count) if len(order) <= _MAX_EXACT else best


def _lower_bound(sizes: Sequence[int], capacity: int) -> int:
    """For each threshold k: items above capacity - k and above half stand alone, and the rest of the small ones needs
    what room they leave (Martello and Toth's L2)."""
    best = math.ceil(sum(sizes) / capacity)
    for k in {size for size in sizes if size <= capacity // 2}:
        large = [size for size in sizes if size > capacity - k]
        middle = [size for size in sizes if capacity - k >= size > capacity // 2]
        small = sum(size for size in sizes if capacity // 2 >= size >= k)
        missing = max(0, small - (len(middle) * capacity - sum(middle)))
        best = max(best, len(large) + len(middle) + math.ceil(missing / capacity))
    return max(best, sum(1 for size in sizes if 2 * size > capacity))


def _best_fit(order: Sequence[int], sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts each item, largest first, where it leaves least room."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in order:
        fitting = [place for place, room in enumerate(rooms) if room >= sizes[item]]
        if fitting:
            place = min(fitting, key=rooms.__getitem__)
            bins[place].append(item)
            rooms[place] -= sizes[item]
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
        bins.append([first, *(others[place] for place in chosen)])
        taken = set(chosen)
        rest = [item for place, item in enumerate(others) if place not in taken]
    return bins


def _fullest_subset(sizes: Sequence[int], room: int) -> list[int]:
    """Places of items whose sum is the largest that fits; large items first. Bit s of a number says that sum s can
    be."""
    within = (1 << (room + 1)) - 1
    sums = [1]
    for size in sizes:
        sums.append((sums[-1] | (sums[-1] << size)) & within)
        if sums[-1] >> room:
            break
    total = sums[-1].bit_length() - 1
    chosen = []
    for place in range(len(sums) - 2, -1, -1):
        if not sums[place] >> total & 1:
            chosen.append(place)
            total -= sizes[place]
    return chosen


def _search(order: Sequence[int], sizes: Sequence[int], capacity: int, num_bins: int) -> list[list[int]] | None:
    """Depth first: each item, largest first, to every bin in turn, fullest first, bins with equal room being one."""
    rooms = [capacity] * num_bins
    places = [-1] * len(order)
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
            by_room = {room: place for place, room in enumerate(rooms) if room >= size}
            tried.append([by_room[room] for room in sorted(by_room, reverse=True)])
            waste.append(0)
        if places[depth] >= 0:  # Back here: what was tried did not lead anywhere.
            rooms[places[depth]] += size
            wasted -= waste[depth]
            places[depth] = -1
        num_nodes += 1
        if num_nodes > _MAX_NODES:
            return None
        if tried[depth]:
            place = tried[depth].pop()
            rooms[place] -= size
            # Room that not even the smallest item fits in is lost for good.
            waste[depth] = rooms[place] if rooms[place] < smallest else 0
            wasted += waste[depth]
            places[depth] = place
            if wasted <= spare:
                depth += 1
            continue
        tried.pop()
        waste.pop()
        depth -= 1
        if depth < 0:
            return None
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for item, place in zip(order, places, strict=True):
        bins[place].append(item)
    return [items for items in bins if items]


def _longest_first(order: Sequence[int], sizes: Sequence[int], num_parts: int, same_count: bool) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    heap = [(0, part) for part in range(num_parts)]
    most = len(order) // num_parts if same_count else len(order)
    for item in order:
        load, part = heapq.heappop(heap)
        parts[part].append(item)
        if len(parts[part]) < most:
            heapq.heappush(heap, (load + sizes[item], part))
    return parts


def _differencing(order: Sequence[int], sizes: Sequence[int], num_parts: int, same_count: bool) -> list[list[int]]:
    """Joins the two partial partitions whose parts differ most, heavy parts with light ones, until one is left."""
    step = num_parts if same_count else 1
    heap = []
    for number, start in enumerate(range(0, len(order), step)):
        items = order[start : start + step]
        loads = sorted(((sizes[item], [item]) for item in items), key=lambda part: -part[0])
        loads += [(0, []) for _ in range(num_parts - len(items))]
        heap.append((loads[-1][0] - loads[0][0], number, loads))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        joined = [(a + b, ours + theirs) for (a, ours), (b, theirs) in zip(first, reversed(second), strict=True)]
        joined.sort(key=lambda part: -part[0])
        number += 1
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], number, joined))
    return [items for _, items in heap[0][2]] if heap else [[] for _ in range(num_parts)]


def _improved(parts: Sequence[Sequence[int]], sizes: Sequence[int], same_count: bool) -> list[list[int]]:
    """Takes from the heaviest part what makes the heavier of two parts lighter, as long as anything does."""
    result = [list(items) for items in parts]
    loads = [sum(sizes[item] for item in items) for items in result]
    for _ in range(_MAX_EXCHANGES):
        heavy = max(range(len(result)), key=loads.__getitem__)
        best: tuple[int, int, int, int | None] | None = None
        for light in heapq.nsmallest(_MAX_PARTNERS, range(len(result)), key=loads.__getitem__):
            gap = loads[heavy] - loads[light]
            theirs: list[int | None] = list(result[light])
            if not same_count:
                theirs.append(None)  # Nothing comes back: a move.
            if gap < 2 or len(result[heavy]) * len(theirs) > _MAX_PAIRS:
                continue
            for ours in result[heavy]:
                for other in theirs:
                    moved = sizes[ours] - (0 if other is None else sizes[other])
                    after = max(loads[heavy] - moved, loads[light] + moved)
                    if 0 < moved < gap and (best is None or after < best[0]):
                        best = (after, light, ours, other)
        if best is None:
            return result
        _, light, ours, other = best
        result[heavy].remove(ours)
        result[light].append(ours)
        moved = sizes[ours]
        if other is not None:
            result[light].remove(other)
            result[heavy].append(other)
            moved -= sizes[other]
        loads[heavy] -= moved
        loads[light] += moved
    return result


def _best_partition(
    order: Sequence[int], sizes: Sequence[int], parts: Sequence[Sequence[int]], same_count: bool
) -> list[list[int]]:
    """Depth first, lightest part first; never beyond what is known already. Parts that are alike are one."""
    best = [list(items) for items in parts]
    limit = _heaviest(parts, sizes)
    floor = math.ceil(sum(sizes) / len(parts))
    most = len(order) // len(parts) if same_count else len(order)
    loads = [0] * len(parts)
    current: list[list[int]] = [[] for _ in parts]
    num_nodes = 0

    def place(depth: int) -> None:
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
            if alike in seen or len(current[part]) == most:
                continue
            seen.add(alike)
            loads[part] += sizes[item]
            current[part].append(item)
            place(depth + 1)
            current[part].pop()
            loads[part] -= sizes[item]

    place(0)
    return best


def _heaviest(parts: Sequence[Sequence[int]], sizes: Sequence[int]) -> int:
    return max((sum(sizes[item] for item in items) for items in parts), default=0)
