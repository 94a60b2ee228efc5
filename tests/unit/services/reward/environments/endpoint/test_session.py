"""The calls of one episode at the endpoint, without HTTP."""

import asyncio

import pytest

from services.reward.environments.endpoint.refusals import Refused
from services.reward.environments.endpoint.session import Session
from shoal.v1 import environment_pb2 as pb


async def test_an_answer_is_read_where_one_of_two_requests_for_it_waits() -> None:
    session = Session(lambda call: None, 4096)
    key = {"idempotency-key": "a"}
    first, second = (asyncio.create_task(session.ask(pb.PolicyCall(), b"", key)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    session.take(pb.PolicyReply(call_id="c1", answer=pb.PolicyAnswer()))
    assert (await second).call_id == "c1"
    session.close()
    assert session.unread == (), "the second request has read it"


async def test_calls_that_are_on_their_way_at_the_end_are_unread() -> None:
    session = Session(lambda call: None, 4096)
    read, waited_for, left = (
        asyncio.create_task(session.ask(pb.PolicyCall(), name, {})) for name in (b"read", b"waited for", b"left")
    )
    await asyncio.sleep(0)
    session.take(pb.PolicyReply(call_id="c1", answer=pb.PolicyAnswer()))
    await read
    left.cancel()
    await asyncio.sleep(0)
    session.close()
    with pytest.raises(Refused, match="the episode has ended"):
        await waited_for
    assert session.unread == ("c2", "c3"), "the caller may answer them before it hears of the end"
