"""An episode of an agent, which is a function, with a scripted policy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np

from services.coordinator.rollout.episodes.messages import (
    BrokenEpisode,
    EpisodeResult,
    Observation,
    PolicyAnswer,
    PolicyCall,
    PolicyRefusal,
)
from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.episodes.stream import EnvironmentInfo, EnvironmentLost
from services.coordinator.rollout.pause import Pause
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.rollout import Completion, EnvironmentTask, Episode, Prompt
from shoal.scores import ScoreOutcome
from tests.support.configs import run_config
from tests.support.turn_generators import TOKENIZER, Generators, play_group

ADD = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"text": {"type": "string"}}})
NO_TOKENS = np.zeros(0, np.int32)
OPENER = "<|im_start|>assistant\n"
Reply = PolicyAnswer | PolicyRefusal


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


class Policy:
    def __init__(self) -> None:
        self.calls: asyncio.Queue[PolicyCall | EpisodeResult | Exception] = asyncio.Queue()
        self.replies: dict[str, asyncio.Future[Reply]] = {}

    async def ask(self, *messages: ChatMessage, tokens: Sequence[int] = (), **fields: Any) -> Reply:
        call_id = f"c{len(self.replies)}"
        self.replies[call_id] = asyncio.get_running_loop().create_future()
        given = {"tools": (), "max_tokens": 0, "stop_token_ids": (), "stop_strings": (), "is_auxiliary": False} | fields
        self.calls.put_nowait(PolicyCall(call_id, messages, token_ids=np.array(tokens, np.int32), **given))
        return await self.replies[call_id]

    async def say(self, *messages: ChatMessage, **fields: Any) -> ChatMessage:
        reply = await self.ask(*messages, **fields)
        assert isinstance(reply, PolicyAnswer), reply
        return reply.message


Agent = Callable[[Policy], Awaitable[dict[str, Any] | None]]
"""Returns fields of its result, if it has any to say."""


@dataclass
class Environments:
    """Runs the agent, once more each time that the episode is played again."""

    agent: Agent
    num_plays: int = 0

    @contextlib.asynccontextmanager
    async def play(self, start: Any, replay: Sequence[Any]) -> AsyncIterator[Any]:
        self.num_plays += 1
        policy = Policy()
        running = asyncio.create_task(self._run(policy))

        async def next_call() -> Any:
            item = await policy.calls.get()
            if isinstance(item, Exception):
                raise item
            return item

        async def reply(call_id: str, given: Reply) -> None:
            policy.replies[call_id].set_result(given)

        first = AsyncMock(return_value=Observation((), None, False, ()))
        try:
            yield SimpleNamespace(first=first, next_call=next_call, reply=reply)
        finally:
            running.cancel()

    async def _run(self, policy: Policy) -> None:
        try:
            fields = await self.agent(policy) or {}
        except EnvironmentLost as error:
            policy.calls.put_nowait(error)
        except Exception as error:
            policy.calls.put_nowait(BrokenEpisode(repr(error)))
        else:
            policy.calls.put_nowait(EpisodeResult(ScoreOutcome.SCORED, 1.0, {}, "", **fields))


@dataclass
class Played:
    completion: Completion
    episode: Episode
    segments: list[str]
    """Each with its prompt, special tokens included."""
    num_plays: int
    prompt: Prompt
    generators: Generators = field(repr=False)


async def play(
    agent: Agent,
    says: Callable[[int], str] = lambda turn: f"answer {turn}",
    *,
    pause: Pause | None = None,
    max_completion_tokens: int = 1000,
    max_prompt_tokens: int = 1000,
    return_support: bool = False,
    **episodes: Any,
) -> Played:
    config = run_config(
        data={"sources": [{"path": "d", "environment": "agent"}], "max_prompt_tokens": max_prompt_tokens},
        sampling={"max_completion_tokens": max_completion_tokens},
        grpo={"group_size": 2},
        environments=[{"name": "agent", "server": "127.0.0.1:1"}],
        episodes={"tool_parser": "tag", "tools_in_prompt": False} | episodes,
    )
    generators, environments = Generators(says), Environments(agent)
    stages = Stages(config, TOKENIZER)
    await stages.open([EnvironmentInfo("agent", (), False, "", is_agent=True)])
    prompt = Prompt("p:0", np.array([1, 2], np.int32), "", (), (user("row"),), EnvironmentTask("agent", {}))
    scripted: Any = {"generators": generators, "environments": environments, "events": Mock()}
    [completion] = await play_group(
        config, stages, prompt, seeds=[100], return_support=return_support, pause=pause or Pause(), **scripted
    )
    assert completion.episode is not None
    texts = [
        str(TOKENIZER.decode([*segment.prompt_token_ids, *completion.token_ids[segment.start : segment.end]]))
        for segment in completion.episode.segments
    ]
    return Played(completion, completion.episode, texts, environments.num_plays, prompt, generators)


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"
