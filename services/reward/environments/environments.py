"""All environments of a configuration."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing

from services.reward.custom.code import Unusable
from services.reward.environments.local import LocalEnvironment, Requests, Responses
from services.reward.environments.remote import RemoteEnvironment
from shoal.config.environments import EnvironmentConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FieldViolation, InvalidArgument, ResourceExhausted
from shoal.telemetry import metrics, names
from shoal.v1 import environment_pb2
from shoal.wire import invalid

_log = logging.getLogger(__name__)

SERVER_PATIENCE_S = 60.0
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_FIRST_DURATION_S = 10.0
_SMOOTHING = 0.1
"""Weight of the newest episode in the running mean of how long one takes."""

_OPEN = metrics.gauge(names.ENVIRONMENT_OPEN)


class Environments:
    """Finds the environments of a configuration, and plays episodes in them. Belongs to one event loop."""

    def __init__(
        self, config: Sequence[EnvironmentConfig], *, packages: Sequence[str] = (), token_servers: Collection[str] = ()
    ) -> None:
        """Starts nothing. `packages` are those whose classes may be environments (without any, all may),
        `token_servers` the addresses that get this process's token."""
        self._environments: dict[str, LocalEnvironment | RemoteEnvironment] = {}
        for one in config:
            self._environments[one.name] = (
                RemoteEnvironment(one, gets_token=one.server in token_servers, patience_s=SERVER_PATIENCE_S)
                if one.server
                else LocalEnvironment(one, tuple(packages))
            )
        self._num_open = dict.fromkeys(self._environments, 0)
        self._duration_s = dict.fromkeys(self._environments, _FIRST_DURATION_S)
        self._last_try = dict.fromkeys(self._environments, 0.0)
        """When the last of those that were refused may try again."""

    @property
    def pids(self) -> list[int]:
        """Of all processes."""
        return [pid for environment in self._environments.values() for pid in environment.pids]

    @property
    def notice(self) -> str:
        """A message for people: files whose new version is not used. Empty if there are none."""
        return "; ".join(filter(None, (environment.notice for environment in self._environments.values())))

    async def find(self, *, lists_unusable: bool = False) -> None:
        """Loads every environment once, in a process, and asks servers. Again, it takes the code as it is by then.

        Raises `InvalidArgument` that names each table that cannot be used, and why; with `lists_unusable` these are
        listed as unavailable instead.
        """
        results = await asyncio.gather(
            *(environment.find() for environment in self._environments.values()), return_exceptions=True
        )
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
        """Takes new code from now on, for the tables with `reload`."""
        for environment in self._environments.values():
            environment.watch()

    async def close(self) -> None:
        """Ends everything that was started."""
        await asyncio.gather(*(environment.close() for environment in self._environments.values()))

    def describe(self) -> list[environment_pb2.EnvironmentInfo]:
        """Describes them, by name."""
        return [self._environments[name].info for name in sorted(self._environments)]

    async def play(self, start: environment_pb2.EpisodeStart, requests: Requests) -> Responses:
        """Plays one episode. Raises `InvalidArgument`, `ResourceExhausted` where too many are open, and `Aborted`."""
        environment = self._environments.get(start.environment)
        if environment is None:
            known = ", ".join(sorted(self._environments)) or "none"
            raise invalid("start.environment", f"there is no environment {start.environment!r}; configured: {known}")
        if environment.info.unavailable:
            raise invalid("start.environment", f"{start.environment} cannot work here: {environment.info.unavailable}")
        self._open(start.environment, environment.config.max_episodes)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with aclosing(environment.play(start, requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._change_open(start.environment, -1)
            mean_s = self._duration_s[start.environment]
            self._duration_s[start.environment] += _SMOOTHING * (loop.time() - started - mean_s)

    def _open(self, name: str, max_episodes: int) -> None:
        if self._num_open[name] >= max_episodes:
            raise ResourceExhausted(
                f"{max_episodes} episodes of {name} are open (environments.{name}.max_episodes)",
                reason=ErrorReason.QUEUE_FULL,
                retry_after_s=self._wait_s(name, max_episodes),
            )
        self._change_open(name, 1)

    def _wait_s(self, name: str, max_episodes: int) -> float:
        """Returns when to try again: one after the other, as places become free. All at once would be a storm."""
        now = asyncio.get_running_loop().time()
        turn = max(self._last_try[name], now) + self._duration_s[name] / max_episodes
        self._last_try[name] = min(max(turn, now + _MIN_RETRY_S), now + _MAX_RETRY_S)
        return self._last_try[name] - now

    def _change_open(self, name: str, by: int) -> None:
        self._num_open[name] += by
        _OPEN.set(self._num_open[name], {names.ENVIRONMENT: name})
