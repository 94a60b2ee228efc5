"""The end of an agent's episode, with a process that is none."""

import asyncio
from typing import Any

import pytest

from services.reward.environments import episode as episode_module
from services.reward.environments.environment_process import ProcessLost
from services.reward.environments.episode import EpisodeHere, Start


class Process:
    """Runs an agent that never ends, and takes no other call while it hangs."""

    is_private = False

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.calls: list[str] = []
        self.killed, self.runs = asyncio.Event(), asyncio.Event()

    async def call(self, name: str, **_: Any) -> dict[str, Any]:
        if self.killed.is_set():
            raise ProcessLost("it was killed", in_call=False)
        self.calls.append(name)
        if name == "run":
            self.runs.set()
        if name == "run" or (self.hangs and name in ("stop", "close")):
            await self.killed.wait()
            raise ProcessLost("it was killed", in_call=name == "run")
        return {"tool_outcomes": []}

    def kill(self, why: str) -> None:
        self.killed.set()


class Pool:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.num_left = self.num_ended = 0

    def begin_episode(self) -> None: ...

    def end_episode(self) -> None:
        self.num_ended += 1

    async def place(self, **_: Any) -> Process:
        return self.process

    def leave(self, process: Process) -> None:
        self.num_left += 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_agent_whose_caller_has_gone_is_ended_and_its_place_is_free(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_module, "_STOP_TIMEOUT_S", 0.01)
    process = Process(hangs=hangs)
    pool = Pool(process)
    episode = EpisodeHere(pool, Start("e", {}, 0, (), 60.0), is_deterministic=False)  # type: ignore[arg-type]
    await episode.begin()
    running = asyncio.create_task(episode.run({}))
    await process.runs.wait()
    running.cancel()
    await asyncio.wait([running])
    await asyncio.wait_for(episode.close(), 60)
    assert process.calls == (["reset", "run", "stop"] if hangs else ["reset", "run", "stop", "close"])
    assert process.killed.is_set() is hangs and (pool.num_left, pool.num_ended) == (1, 1)
