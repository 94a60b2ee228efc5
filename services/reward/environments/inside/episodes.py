"""The episodes of one process, each with its own object of the environment's class."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from services.reward.environments.inside.answers import observation_of, result_of
from services.reward.environments.inside.loading import LoadedEnvironment
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.environment import Agent, Environment, Policy, Turn
from shoal.environment.environment import awaited
from shoal.rollout import FinishReason


class Episodes:
    """Carries out the calls of the episodes of a process. The caller sends one call of an episode at a time, except
    that `stop` and `close` may come during another call, which they end."""

    def __init__(self, loaded: LoadedEnvironment, max_chars: int) -> None:
        """`max_chars` is the largest number of characters of an observation."""
        self._loaded, self._max_chars = loaded, max_chars
        self._environments: dict[str, Environment] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._threads: dict[str, asyncio.Future[Any]] = {}
        """The threads of agents that are not coroutines, by episode."""

    async def call(self, call: Mapping[str, Any]) -> Any:
        """Returns the answer as JSON. Raises what the environment raises."""
        episode = call["episode"]
        if call["call"] == "close":
            return await self._close(episode)
        if call["call"] == "stop":
            return await self._stop(episode)
        task = asyncio.current_task()
        assert task is not None
        self._running[episode] = task
        try:
            match call["call"]:
                case "reset":
                    environment = self._environments[episode] = self._loaded.make()
                    environment.prompt = tuple(map(message_of, call["messages"]))
                    environment.offered_tools = None if call["tools"] is None else frozenset(call["tools"])
                    said = await awaited(environment.reset(call["task"], call["seed"]))
                    return observation_of(said, self._max_chars)
                case "step":
                    said = await awaited(self._environments[episode].step(turn_of(call["turn"])))
                    return observation_of(said, self._max_chars)
                case "run":
                    return await self._run(call)
                case "result":
                    return result_of(self._environments[episode])
        finally:
            del self._running[episode]
        raise ValueError(f"no such call: {call['call']}")

    async def _run(self, call: Mapping[str, Any]) -> None:
        """Runs an agent; if it is not a coroutine, in a thread."""
        agent = self._environments[call["episode"]]
        assert isinstance(agent, Agent)
        run = partial(agent.run, call["task"], call["seed"], Policy(**call["policy"]))
        if inspect.iscoroutinefunction(agent.run):
            reward = await run()
        else:
            thread = self._threads[call["episode"]] = in_thread(run)
            reward = await awaited(await asyncio.shield(thread))
        if reward is not None:
            agent.reward = reward

    async def _stop(self, episode: str) -> None:
        """Ends the current call of an episode, if there is one."""
        if (running := self._running.get(episode)) is not None:
            running.cancel()
            await asyncio.wait([running])

    async def _close(self, episode: str) -> None:
        await self._stop(episode)
        if (thread := self._threads.pop(episode, None)) is not None:
            await asyncio.wait([thread])  # It can only end by itself. Its calls of the policy are refused by now.
        if (environment := self._environments.pop(episode, None)) is not None:
            await awaited(environment.close())


def turn_of(turn: Mapping[str, Any]) -> Turn:
    """Reads a turn from the JSON of a call."""
    message, reason = message_of(turn["message"]), FinishReason(turn["finish_reason"])
    opened_thought = turn.get("opened_thought", "")
    return Turn(turn["number"], message.content, message.tool_calls, reason, turn["num_tokens"], opened_thought)


def message_of(message: Mapping[str, Any]) -> ChatMessage:
    """Reads a message from the JSON of a call."""
    calls = [ToolCall(**{**call, "status": ToolCallStatus(call["status"])}) for call in message["tool_calls"]]
    return ChatMessage(message["role"], message["content"], tuple(calls), message["tool_call_id"], message["name"])


def in_thread(work: Callable[[], Any]) -> "asyncio.Future[Any]":
    """Runs `work` in its own thread, which does not keep the process from ending. Returns the future of its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def fail(error: BaseException) -> None:
        done.set_exception(error)
        done.exception()  # Retrieve the error, even if nobody waits any more.

    def run() -> None:
        try:
            loop.call_soon_threadsafe(done.set_result, work())
        except SystemExit as error:  # For example from a script that is called.
            loop.call_soon_threadsafe(fail, RuntimeError(f"it called exit({error.code})"))
        except StopIteration as error:  # A future does not take this error.
            loop.call_soon_threadsafe(fail, RuntimeError(f"it raised StopIteration({error.value!r:.80})"))
        except BaseException as error:  # Otherwise the caller would wait forever.
            loop.call_soon_threadsafe(fail, error)

    threading.Thread(target=run, daemon=True).start()
    return done
