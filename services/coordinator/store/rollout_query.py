"""Selects the groups that a listing of a ledger shows, puts them in order, and finds where a page begins."""

import heapq
import re
from dataclasses import dataclass
from math import inf

from services.coordinator.store.tables.blocks import WholeLedger
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire import invalid
from shoal.wire.paging import bad_token

_MEAN_REWARD = (
    "COALESCE((SELECT AVG(reward) FROM completions WHERE completions.order_number = groups.order_number), -9e999)"
)
_TOKEN = re.compile(
    "(?P<order>[0-9]{1,18})(?:/(?P<rollout>[0-9]{1,9}))?"
    "(?::(?P<reward>[^:]*)(?::(?P<first>[0-9]{1,18}):(?P<last>[0-9]{1,18}))?)?"
)


@dataclass(frozen=True)
class ListingPlace:
    """A group's place in a listing."""

    order_number: int
    reward: float | None
    """Mean reward of the group, or -inf if the group has none. None if the listing is in the order of issue."""


@dataclass(frozen=True)
class OrderRange:
    """The order numbers of the first and the last group, for a listing of the groups that were issued last."""

    first: int
    last: int


class RolloutQuery:
    """A request of `ListRollouts`, which is evaluated on each part of a ledger in turn.

    The token of a page has the order number and mean reward of its first group, how many rollouts of that group were on
    earlier pages, and the range of groups that `last` selected for the first page.
    """

    def __init__(self, ledger: WholeLedger, request: pb.ListRolloutsRequest) -> None:
        """Raises `InvalidArgument` for a negative `step` or `last`, or a page token of another listing."""
        for name in ("step", "last"):
            if (value := getattr(request, name)) < 0:
                raise invalid(name, f"must be at least 0 (given: {value})")
        self._ledger = ledger
        self._request = request
        self._is_by_reward = request.order == pb.ROLLOUT_ORDER_REWARD
        self._condition, self._values = _filters(request)
        if request.page_token:
            self._start, self.num_listed, self._limits = self._parse(request.page_token)
        else:
            self.num_listed = 0
            """Number of rollouts of the page's first group that were on earlier pages."""
            self._start = ListingPlace(0, inf if self._is_by_reward else None)
            self._limits = self._last_issued(request.last) if request.last else None

    def places(self, limit: int) -> list[ListingPlace]:
        """Returns the places of the page's first groups, at most `limit`."""
        condition, values = self._condition, list(self._values)
        if self._limits is not None:
            condition += " AND order_number BETWEEN ? AND ?"
            values += [self._limits.first, self._limits.last]
        if self._is_by_reward:
            return self._best(condition, values, limit)
        places: list[ListingPlace] = []
        for part in self._ledger.parts(first=self._start.order_number, step=self._request.step):
            rows = part.execute(
                f"SELECT order_number, NULL FROM groups WHERE {condition} AND order_number >= ?"
                " ORDER BY order_number LIMIT ?",
                [*values, self._start.order_number, limit - len(places)],
            )
            places += [ListingPlace(*row) for row in rows]
            if len(places) == limit:
                break
        return places

    def _best(self, condition: str, values: list[int], limit: int) -> list[ListingPlace]:
        """Returns the places of the page's first groups in the order of their rewards."""
        places: list[ListingPlace] = []
        start = self._start
        for part in self._ledger.parts(first=self._limits.first if self._limits else 0, step=self._request.step):
            rows = part.execute(
                f"WITH listed AS MATERIALIZED (SELECT order_number, {_MEAN_REWARD} AS reward FROM groups"
                f" WHERE {condition}) SELECT order_number, reward FROM listed"
                " WHERE reward < ? OR (reward = ? AND order_number >= ?) ORDER BY reward DESC, order_number LIMIT ?",
                [*values, start.reward, start.reward, start.order_number, limit],
            )
            places = heapq.nsmallest(limit, [*places, *(ListingPlace(*row) for row in rows)], key=_by_reward)
        return places

    def token(self, start: ListingPlace, num_listed: int) -> str:
        """Returns the token of the page that begins at a place: "7", "7/12", "7:0.5", "7::3:9" or "7/12:0.5:3:9"."""
        number = f"{start.order_number}/{num_listed}" if num_listed else str(start.order_number)
        reward = "" if start.reward is None else repr(start.reward)
        limits = f"{self._limits.first}:{self._limits.last}" if self._limits else ""
        return f"{number}:{reward}:{limits}".rstrip(":")

    def _parse(self, token: str) -> tuple[ListingPlace, int, OrderRange | None]:
        match = _TOKEN.fullmatch(token)
        found = match and (bool(match["reward"]), bool(match["first"]))
        if match is None or found != (self._is_by_reward, bool(self._request.last)):
            raise bad_token(token)
        try:
            place = ListingPlace(int(match["order"]), float(match["reward"]) if match["reward"] else None)
        except ValueError:
            raise bad_token(token) from None
        limits = OrderRange(int(match["first"]), int(match["last"])) if match["first"] else None
        return place, int(match["rollout"] or 0), limits

    def _last_issued(self, count: int) -> OrderRange:
        numbers: list[int] = []
        for part in self._ledger.newest_parts(step=self._request.step):
            rows = part.execute(
                f"SELECT order_number FROM groups WHERE {self._condition} ORDER BY order_number DESC LIMIT ?",
                [*self._values, count - len(numbers)],
            )
            numbers += [number for (number,) in rows]
            if len(numbers) == count:
                break
        return OrderRange(numbers[-1], numbers[0]) if numbers else OrderRange(0, 0)


def _by_reward(place: ListingPlace) -> tuple[float, int]:
    return -(place.reward or 0.0), place.order_number


def _filters(request: pb.ListRolloutsRequest) -> tuple[str, list[int]]:
    """Returns the condition that groups have to meet, and the values of its parameters."""
    conditions, values = ["TRUE"], []
    if request.step:
        conditions.append(
            "order_number IN (SELECT order_number FROM transitions WHERE policy_version = ?"
            " AND state IN ('TRAINED', 'DROPPED')"
            # A group that was dropped, and issued again after a restore, has a later transition.
            " AND sequence IN (SELECT MAX(sequence) FROM transitions GROUP BY order_number))"
        )
        values.append(request.step)
    if request.failed:
        conditions.append(
            "EXISTS (SELECT 1 FROM completions WHERE completions.order_number = groups.order_number"
            " AND outcome IN ('failed', 'unscorable'))"
        )
    if request.dropped:
        conditions.append("state = 'DROPPED'")
    return " AND ".join(conditions), values
