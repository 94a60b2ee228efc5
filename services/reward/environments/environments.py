"""All environments of a configuration, and the limits of their open episodes."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing

from services.reward.custom.code import Unusable
from services.reward.environments.agents import Requests
from services.reward.environments.local import LocalEnvironment, Responses
from services.reward.environments.remote import RemoteEnvironment
from shoal.config.tables.environments import EnvironmentConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FieldViolation, InvalidArgument, ResourceExhausted
from shoal.telemetry import metrics, names
from shoal.v1 import environment_pb2
from shoal.wire import invalid

SERVER_PATIENCE_S = 60.0

_FIRST_DURATION_S = 0.1
"""Assumed duration of an episode before any has ended. If too short, it costs calls; if too long, places stay empty."""
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_SMOOTHING = 0.1
"""Weight of the newest episode in the running mean of durations, after the first episodes."""

_OPEN = metrics.gauge(names.ENVIRONMENT_OPEN)


class Places:
    """Counts the open episodes of one environment, and tells refused episodes when to try again."""

    def __init__(self, environment: str, num_places: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._environment, self._num_places, self._now_s = environment, num_places, now_s
        self._num_open = self._num_ended = 0
        self._mean_s = _FIRST_DURATION_S
        self._last_opened_s = self._last_try_s = 0.0
        """The times at which the last place was taken, and at which the last refused episode may try again."""

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Holds a place during the block. Raises `ResourceExhausted`, with the time of a retry, if no place is free."""
        if self._num_open >= self._num_places:
            raise ResourceExhausted(
                f"{self._num_places} episodes of {self._environment} are open, and "
                f"environments.{self._environment}.max_episodes allows no more",
                reason=ErrorReason.QUEUE_FULL,
                retry_after_s=self._wait_s(),
            )
        began_s = self._last_opened_s = self._now_s()
        self._change_open(1)
        try:
            yield
        finally:
            self._change_open(-1)
            self._num_ended += 1
            weight = max(_SMOOTHING, 1 / self._num_ended)
            self._mean_s += weight * (self._now_s() - began_s - self._mean_s)

    def _wait_s(self) -> float:
        """Returns the wait before a retry. Episodes retry one after the other, as places become free."""
        now = self._now_s()
        # All open episodes have lasted at least as long as the newest of them, whatever earlier episodes took.
        duration_s = max(self._mean_s, now - self._last_opened_s)
        turn = max(self._last_try_s, now) + duration_s / self._num_places
        # Episodes that would wait longer also come at different times.
        latest = now + _MAX_RETRY_S * random.uniform(0.5, 1.0)
        self._last_try_s = min(max(turn, now + _MIN_RETRY_S), latest)
        return self._last_try_s - now

    def _change_open(self, by: int) -> None:
        self._num_open += by
        _OPEN.set(self._num_open, {names.ENVIRONMENT: self._environment})


class Environments:
    """Finds the environments of a configuration, and plays episodes in them. Belongs to one event loop."""

    def __init__(
        self, config: Sequence[EnvironmentConfig], *, packages: Sequence[str] = (), token_servers: Collection[str] = ()
    ) -> None:
        """Starts nothing. Environments in modules must be defined in one of `packages` (in any, if it is empty).
        `token_servers` has the addresses that get this process's token."""
        self._environments: dict[str, LocalEnvironment | RemoteEnvironment] = {}
        for one in config:
            self._environments[one.name] = (
                RemoteEnvironment(one, gets_token=one.server in token_servers, patience_s=SERVER_PATIENCE_S)
                if one.server
                else LocalEnvironment(one, tuple(packages))
            )
        self._places = {one.name: Places(one.name, one.max_episodes) for one in config}

    @property
    def pids(self) -> list[int]:
        """The ids of all processes."""
        return [pid for environment in self._environments.values() for pid in environment.pids]

    @property
    def notice(self) -> str:
        """A message for people: files whose new version is not used. Empty if there are none."""
        return "; ".join(filter(None, (environment.notice for environment in self._environments.values())))

    async def find(self, *, lists_unusable: bool = False, keeps_tools: bool = False) -> None:
        """Loads every environment once, in a process, and asks servers. A second call loads the current code. With
        `keeps_tools`, an environment is unusable if its new code lacks a tool of the old code.

        Raises `InvalidArgument` with unusable tables and the reasons. `lists_unusable` lists these as unavailable.
        """
        finding = [environment.find(keeps_tools=keeps_tools) for environment in self._environments.values()]
        results = await asyncio.gather(*finding, return_exceptions=True)
        problems = []
        for name, result in zip(self._environments, results, strict=True):
            if isinstance(result, Unusable) and lists_unusable:
                self._environments[name].info.unavailable = str(result)
            elif isinstance(result, Unusable):
                problems.append(FieldViolation(f"environments.{name}.source", str(result)))
            elif isinstance(result, BaseException):
                raise result
        if problems:
            raise InvalidArgument(
                "; ".join(f"{problem.field}: {problem.description}" for problem in problems), violations=problems
            )

    def watch(self) -> None:
        """Starts the watch for changed code, for the tables with `reload`."""
        for environment in self._environments.values():
            environment.watch()

    async def close(self) -> None:
        """Ends everything that was started."""
        await asyncio.gather(*(environment.close() for environment in self._environments.values()))

    def describe(self) -> list[environment_pb2.EnvironmentInfo]:
        """Describes the environments, by name."""
        return [self._environments[name].info for name in sorted(self._environments)]

    async def play(self, start: environment_pb2.EpisodeStart, requests: Requests) -> Responses:
        """Plays one episode. Raises `InvalidArgument` for a bad message, `ResourceExhausted` if too many episodes are
        open, and `Aborted` if the episode must begin again."""
        environment = self._environments.get(start.environment)
        if environment is None:
            known = ", ".join(sorted(self._environments)) or "none"
            raise invalid("start.environment", f"there is no environment {start.environment!r}; configured: {known}")
        if environment.info.unavailable:
            raise invalid("start.environment", f"{start.environment} cannot work here: {environment.info.unavailable}")
        there = [tool.name for tool in environment.info.tools]
        for name in start.tools.names:
            if name not in there:
                has = ", ".join(there) or "none"
                raise invalid("start.tools", f"{start.environment} has no tool {name!r:.80}; it has: {has}")
        with self._places[start.environment].one():
            async with aclosing(environment.play(start, requests)) as responses:
                async for response in responses:
                    yield response
