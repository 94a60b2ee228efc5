"""An episode of an agent: its program runs, and calls the policy through the endpoint, until one side ends it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeAlias

from services.reward.environments.endpoint.server import PolicyEndpoint
from services.reward.environments.endpoint.session import Session
from services.reward.environments.environment_process import log_raised
from services.reward.environments.episode import CallerLeft, EpisodeFailed, EpisodeHere
from shoal.v1 import environment_pb2 as pb
from shoal.wire import invalid

_log = logging.getLogger(__name__)

_DEFAULT_CONTEXT_TOKENS = 1 << 17
"""The longest context if the caller does not give one."""

Requests: TypeAlias = AsyncIterator[pb.RunEpisodeRequest]
Calls: TypeAlias = AsyncGenerator[pb.PolicyCall, None]


class AgentPlay:
    """Runs one agent that has been reset."""

    def __init__(self, episode: EpisodeHere, endpoint: PolicyEndpoint, start: pb.EpisodeStart, idle_s: float) -> None:
        """`idle_s` is the longest time that the agent may take between its calls."""
        self._episode, self._endpoint, self._start, self._idle_s = episode, endpoint, start, idle_s
        self._outgoing: asyncio.Queue[pb.PolicyCall | None] = asyncio.Queue()
        """Calls to send; None marks the end of the agent or of the replies."""
        self.unread: tuple[str, ...] = ()
        """The calls whose answers the agent never read. Set when the calls have ended."""

    async def calls(self, requests: Requests) -> Calls:
        """Yields the agent's calls until it has ended, or the caller ends it. `requests` are the caller's replies.

        Raises `EpisodeFailed` if the agent breaks or does nothing, `Aborted` if its process died, and `CallerLeft`.
        """
        max_tokens = self._start.max_context_tokens or _DEFAULT_CONTEXT_TOKENS
        async with self._endpoint.session(self._outgoing.put_nowait, max_tokens) as (base_url, session):
            policy = {"base_url": base_url, "api_key": session.key, "max_context_tokens": max_tokens}
            running = asyncio.create_task(self._episode.run(policy))
            replying = asyncio.create_task(_take_replies(requests, session))
            waiting = asyncio.create_task(self._until_idle(session))
            tasks = (running, replying, waiting)
            for task in tasks:
                task.add_done_callback(lambda _: self._outgoing.put_nowait(None))
            try:
                while (call := await self._outgoing.get()) is not None:
                    yield call
                await self._end(running, replying, session)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                session.close()
                self.unread = session.unread

    async def _end(self, running: "asyncio.Task[None]", replying: "asyncio.Task[None]", session: Session) -> None:
        """Ends the agent if it still runs. Raises its error."""
        if not running.done():
            session.close()
            await self._episode.stop()
            if replying.done():
                replying.result()
            elif session.limit is None:
                raise EpisodeFailed(f"the agent did not call the policy for {self._idle_s:g} s, and did not end")
            return
        try:
            running.result()
        except EpisodeFailed as error:
            if session.limit is None:
                if error.traceback:
                    log_raised(self._start.environment, error.traceback)
                raise
            # Most agents can only raise when nothing more is sampled for them.
            extra = {"episode": self._start.episode_id, "how": str(error), "traceback": error.traceback}
            _log.info("agent ended by a limit", extra=extra)

    async def _until_idle(self, session: Session) -> None:
        while True:
            left_s = self._idle_s - session.idle_s()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)


async def _take_replies(requests: Requests, session: Session) -> None:
    """Passes the caller's replies on, until the caller ends the episode or leaves."""
    async for request in requests:
        match request.WhichOneof("part"):
            case "reply":
                session.take(request.reply)
            case "end":
                return
            case _:
                raise invalid("reply", "after an agent's start, send only replies to its calls, and finally the end")
    raise CallerLeft
