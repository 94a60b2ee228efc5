"""An environment whose code runs in processes of this service."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import aclosing
from typing import Any, TypeAlias

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from services.reward.custom.code import Unusable
from services.reward.custom.custom_verifiers import SHOWN_DIGITS, new_versions
from services.reward.environments.agents import AgentPlay, Requests
from services.reward.environments.code import read_code
from services.reward.environments.endpoint.server import PolicyEndpoint
from services.reward.environments.environment_process import LOAD_TIMEOUT_S, CallFailed, ProcessLost
from services.reward.environments.episode import CallerLeft, EpisodeFailed, EpisodeHere
from services.reward.environments.pool import EnvironmentPool
from services.reward.environments.wire import (
    failure_to_wire,
    info_to_wire,
    observation_to_wire,
    result_to_wire,
    start_from_wire,
    turn_from_wire,
)
from shoal.config.tables.environments import EnvironmentConfig
from shoal.telemetry import metrics, names
from shoal.v1 import environment_pb2
from shoal.wire import invalid

_log = logging.getLogger(__name__)

_DURATION = metrics.histogram(names.ENVIRONMENT_CALL_DURATION)

_FIRST_STARTS = 2
"""Attempts to start a process of code that has not worked yet."""

Responses: TypeAlias = AsyncGenerator[environment_pb2.RunEpisodeResponse, None]


class LocalEnvironment:
    """Plays episodes in processes. Belongs to one event loop."""

    def __init__(self, config: EnvironmentConfig, packages: tuple[str, ...] = ()) -> None:
        """An environment in a module must be defined in one of `packages` (in any, if it is empty)."""
        self.config, self._packages = config, packages
        self.info = environment_pb2.EnvironmentInfo(name=config.name)
        self.notice = ""
        """A new version of the file that is not used, with the reason; empty if there is none."""
        self._pool: EnvironmentPool | None = None
        self._former: list[EnvironmentPool] = []
        """The pools of processes with earlier code."""
        self._endpoint = PolicyEndpoint()
        """The endpoint at which agents call the policy."""
        self._finding = asyncio.Lock()
        self._beside: set[asyncio.Task[None]] = set()
        """Background tasks: closing the pools of earlier code, cleaning up after episodes, and watching the file."""

    @property
    def pids(self) -> list[int]:
        return [pid for pool in (self._pool, *self._former) if pool is not None for pid in pool.pids]

    async def find(self, *, keeps_tools: bool = False) -> None:
        """Loads the current code in a process, and uses it for later episodes. Raises `Unusable` if it cannot be used;
        with `keeps_tools`, also if it lacks a tool of the earlier code. The earlier code then stays in use."""
        async with self._finding:
            await self._find(keeps_tools)
        self.notice = ""

    async def _find(self, keeps_tools: bool) -> None:
        code = await asyncio.to_thread(read_code, self.config, self._packages)
        pool = EnvironmentPool(code, self.config.episodes_per_process)
        try:
            info = _listed(code.name, await described(pool))
            if code.is_built_in:
                info.code_digest = ""
            if keeps_tools and (why := lost_tool(self.info, info)):
                raise Unusable("source", why)
        except BaseException:
            await pool.close()
            raise
        self.info = info
        former, self._pool = self._pool, pool
        if former is not None:
            self._former.append(former)
            self._run_beside(self._retire(former))

    async def _retire(self, former: EnvironmentPool) -> None:
        await former.retire()
        self._former.remove(former)

    def watch(self) -> None:
        """Begins to take new code when the file changes, if the configuration says so."""
        if self.config.reload:
            self._run_beside(self._watch())

    async def _watch(self) -> None:
        async for _ in new_versions(self.config.file):
            await self._reload()

    async def _reload(self) -> None:
        """Takes the file's code if it differs from the current code and works."""
        assert self._pool is not None, "find first"
        current = self._pool.code
        try:
            if await asyncio.to_thread(read_code, self.config, self._packages) != current:
                await self.find(keeps_tools=True)
                _log.info("environment has new code", extra={"environment": self.config.name, "file": current.path})
        except Unusable as error:
            self.notice = (
                f"environments.{self.config.name}.source: the new code cannot be used, so the code with the digest "
                f"{current.digest[:SHOWN_DIGITS]} stays in use: {error}"
            )
            _log.error("environment keeps its code", extra={"environment": self.config.name, "error": self.notice})

    async def close(self) -> None:
        for task in self._beside:
            task.cancel()
        for pool in (self._pool, *self._former):
            if pool is not None:
                await pool.close()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._endpoint.close()

    async def play(self, first: environment_pb2.EpisodeStart, requests: Requests) -> Responses:
        """Plays one episode."""
        assert self._pool is not None, "find first"
        start = start_from_wire(first)
        replay = [turn_from_wire(turn, number) for number, turn in enumerate(first.replay, start=1)]
        if replay and not self.info.is_deterministic:
            raise invalid("start.replay", f"the environment {self.config.name} is not deterministic: send no replay")
        episode = EpisodeHere(self._pool, start, is_deterministic=self.info.is_deterministic)
        try:
            number = len(replay)
            observation = await self._timed("reset", episode.begin(replay))
            yield observation_to_wire(observation, number)
            agent = None
            if self.info.is_agent:
                agent = AgentPlay(episode, self._endpoint, first, start.call_timeout_s)
                playing = self._calls(agent, requests)
            else:
                playing = self._turns(episode, number, is_done=observation["done"], requests=requests)
            async with aclosing(playing) as responses:
                async for response in responses:
                    yield response
            yield result_to_wire(await episode.result(), agent.unread if agent is not None else ())
        except CallerLeft:
            pass
        except EpisodeFailed as error:
            _log.warning(
                "episode without a result",
                extra={"environment": self.config.name, "episode": start.episode_id, "why": str(error)},
            )
            yield failure_to_wire(error.outcome, str(error))
        finally:
            # Shield the cleanup: the end of the stream waits for it, but must not cancel it.
            await asyncio.shield(self._run_beside(episode.close()))

    async def _calls(self, play: AgentPlay, requests: Requests) -> Responses:
        async with aclosing(play.calls(requests)) as calls:
            async for call in calls:
                yield environment_pb2.RunEpisodeResponse(call=call)

    async def _turns(self, episode: EpisodeHere, number: int, *, is_done: bool, requests: Requests) -> Responses:
        """Answers the turns after that number, until the environment or the caller ends the episode."""
        while not is_done:
            request = await anext(requests, None)
            if request is None:
                raise CallerLeft
            if request.WhichOneof("part") == "end":
                return
            if request.WhichOneof("part") != "turn":
                raise invalid("turn", "after the start, send only turns, and finally the end")
            number += 1
            observation = await self._timed("step", episode.step(turn_from_wire(request.turn, number)))
            yield observation_to_wire(observation, number)
            is_done = observation["done"]

    async def _timed(self, call: str, carrying_out: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            return await carrying_out
        finally:
            _DURATION.record(loop.time() - started, {names.ENVIRONMENT: self.config.name, names.CALL: call})

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task


def _listed(name: str, described: dict[str, Any]) -> environment_pb2.EnvironmentInfo:
    """Returns the environment's message. Raises `Unusable` for tools that do not fit a message."""
    try:
        return info_to_wire(name, described)
    except (TypeError, DecodeError, json_format.ParseError) as error:
        raise Unusable("source", f"its tools cannot be listed: {error}") from None


def lost_tool(former: environment_pb2.EnvironmentInfo, info: environment_pb2.EnvironmentInfo) -> str:
    """Returns the fault if an environment has lost a former tool or changed its parameters; else an empty text."""
    parameters = {tool.name: tool.parameters for tool in info.tools}
    for tool in former.tools:
        if parameters.get(tool.name) != tool.parameters:
            return (
                f"the new code has no tool {tool.name!r} with the parameters in the run's prompts: restore the tool, "
                "or stop and resume the run"
            )
    return ""


async def described(pool: EnvironmentPool) -> dict[str, Any]:
    """Returns a process's description of its code. Raises `Unusable`."""
    try:
        process = await pool.place(max_starts=_FIRST_STARTS)
        try:
            described: dict[str, Any] = await process.call("describe", timeout_s=LOAD_TIMEOUT_S)
            return described
        finally:
            pool.leave(process)
    except (CallFailed, ProcessLost) as error:
        raise Unusable("source", str(error)) from None
