"""An agent's episode, with an agent that is a function here, and real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import httpx2 as httpx
import pytest

from services.reward.environments.agents import AgentPlay
from services.reward.environments.endpoint.server import PolicyEndpoint
from services.reward.environments.endpoint.session import Session
from services.reward.environments.episode import CallerLeft, EpisodeFailed
from shoal.errors import InvalidArgument
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.waiting import eventually
from tests.unit.services.reward.environments.endpoint.test_server import num_orphaned

Run = Callable[[dict[str, Any]], Awaitable[None]]


class Agent:
    """Stands for the episode in its process."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


async def ask(policy: dict[str, Any]) -> int:
    async with httpx.AsyncClient(timeout=60, verify=False) as client:  # Certificates take long to load.
        response = await client.post(
            f"{policy['base_url']}/chat/completions",
            headers={"Authorization": f"Bearer {policy['api_key']}"},
            json={"messages": [{"role": "user", "content": "hello"}]},
        )
    return int(response.status_code)


async def play(
    run: Run, *, idle_s: float = 60.0, max_calls: int = 1000, requests: list[pb.RunEpisodeRequest] | None = None
) -> tuple[int, Agent]:
    """Plays an agent whose calls are answered up to a limit. Returns how many calls came."""
    agent, endpoint, sent = Agent(run), PolicyEndpoint(), asyncio.Queue[pb.RunEpisodeRequest | None]()

    async def incoming() -> AsyncIterator[pb.RunEpisodeRequest]:
        while (request := await sent.get()) is not None:
            yield request

    num_calls = 0
    playing = AgentPlay(agent, endpoint, pb.EpisodeStart(max_context_tokens=77), idle_s)  # type: ignore[arg-type]
    for request in requests or []:
        sent.put_nowait(request)
    try:
        async with aclosing(playing.calls(incoming())) as calls:
            async for call in calls:
                num_calls += 1
                reply = pb.PolicyReply(call_id=call.call_id)
                if num_calls > max_calls:
                    reply.refusal.reason = pb.POLICY_REFUSAL_REASON_LIMIT
                else:
                    reply.answer.finish_reason = rollout_pb2.FINISH_REASON_STOP
                sent.put_nowait(pb.RunEpisodeRequest(reply=reply))
    finally:
        await endpoint.close()
    return num_calls, agent


async def test_an_agent_that_ends_is_not_stopped() -> None:
    seen = []

    async def run(policy: dict[str, Any]) -> None:
        seen.append(policy)
        assert [await ask(policy), await ask(policy)] == [200, 200]

    num_calls, agent = await play(run)
    assert num_calls == 2 and not agent.is_stopped and seen[0]["max_context_tokens"] == 77


async def do_nothing(policy: dict[str, Any]) -> None:
    await asyncio.Event().wait()


async def test_an_agent_that_does_nothing_is_stopped_and_failed() -> None:
    with pytest.raises(EpisodeFailed, match=r"0\.05 s"):
        await play(do_nothing, idle_s=0.05)


async def test_an_agent_that_goes_on_calling_after_a_limit_is_stopped_and_keeps_its_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "idle_s", lambda session: 0.0 if session.limit is None else 100.0)
    statuses: list[int] = []

    async def run(policy: dict[str, Any]) -> None:
        while True:
            statuses.append(await ask(policy))

    num_calls, agent = await play(run, idle_s=0.2, max_calls=2)
    assert agent.is_stopped and num_calls == 3, "no call is sent after the one that reached the limit"
    assert statuses[:2] == [200, 200] and set(statuses[2:]) <= {400, 409}, statuses


async def test_an_agent_that_breaks_has_failed_unless_a_limit_broke_it() -> None:
    async def run(policy: dict[str, Any]) -> None:
        while await ask(policy) == 200:
            pass
        raise EpisodeFailed("BadRequestError")

    assert (await play(run, max_calls=1))[0] == 2

    async def broken(policy: dict[str, Any]) -> None:
        await ask(policy)
        raise EpisodeFailed("ValueError")

    with pytest.raises(EpisodeFailed, match="ValueError"):
        await play(broken)


async def test_the_traceback_of_an_agent_is_an_error_of_the_log_unless_its_calls_were_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run(policy: dict[str, Any]) -> None:
        await ask(policy)
        raise EpisodeFailed("KeyError", traceback="Traceback of a KeyError")

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    with caplog.at_level("INFO"):
        await play(run, max_calls=0)
        await play(run, max_calls=0, requests=[pb.RunEpisodeRequest(end=pb.EpisodeEnd(stop_reason="no_call"))])
        assert not errors(), errors()
        with pytest.raises(EpisodeFailed, match="KeyError"):
            await play(run)
    assert len(errors()) == 1 and "Traceback of a KeyError" in errors()[0], errors()


async def test_the_caller_may_end_an_agent() -> None:
    end = pb.RunEpisodeRequest(end=pb.EpisodeEnd(stop_reason="timeout"))
    num_calls, agent = await play(do_nothing, requests=[end])
    assert num_calls == 0 and agent.is_stopped


async def test_an_agent_that_gave_up_waiting_never_read_the_answer() -> None:
    agent, endpoint, sent = Agent(lambda _: asyncio.sleep(0)), PolicyEndpoint(), asyncio.Queue[pb.PolicyReply]()
    sessions: list[Session] = []

    async def run(policy: dict[str, Any]) -> None:
        asking = asyncio.create_task(ask(policy))
        await eventually(lambda: sessions, "the call is on its way")
        asking.cancel()
        await eventually(lambda: num_orphaned(sessions[0]) == 1, "the endpoint has noticed")
        for call in calls:
            sent.put_nowait(pb.PolicyReply(call_id=call.call_id, answer=pb.PolicyAnswer()))
        await eventually(lambda: sessions[0].idle_s() > 0, "the answer is there")

    async def incoming() -> AsyncIterator[pb.RunEpisodeRequest]:
        while True:
            yield pb.RunEpisodeRequest(reply=await sent.get())

    agent.run = run
    calls = []
    playing = AgentPlay(agent, endpoint, pb.EpisodeStart(), 60.0)  # type: ignore[arg-type]
    try:
        async with aclosing(playing.calls(incoming())) as coming:
            async for call in coming:
                calls.append(call)
                sessions[:] = endpoint._sessions.values()
    finally:
        await endpoint.close()
    assert playing.unread == (calls[0].call_id,)


async def test_a_turn_is_nothing_for_an_agent() -> None:
    with pytest.raises(InvalidArgument, match="replies to its calls"):
        await play(do_nothing, requests=[pb.RunEpisodeRequest(turn=pb.PolicyTurn(number=1))])


async def test_a_caller_that_leaves_wants_no_result() -> None:
    agent, endpoint = Agent(do_nothing), PolicyEndpoint()

    async def nothing() -> AsyncIterator[pb.RunEpisodeRequest]:
        return
        yield

    try:
        with pytest.raises(CallerLeft):
            async for _ in AgentPlay(agent, endpoint, pb.EpisodeStart(), 60.0).calls(nothing()):  # type: ignore[arg-type]
                pass
    finally:
        await endpoint.close()
    assert agent.is_stopped
