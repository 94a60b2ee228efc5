"""The calls of one episode at the endpoint, without HTTP."""

import asyncio

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
