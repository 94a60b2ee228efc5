"""A trace continues in the called service, and its spans end however the call ends."""

import asyncio
import json
import os
import signal
import sys

from tests.support.loopback import REWARD
from tests.support.otlp_collector import collecting

TIMEOUT_S = 120

CALLER = f"""
import asyncio, contextlib, sys
from shoal.errors import DeadlineExceeded
from shoal.rpc.channel import connect
from shoal.telemetry import names, setup, trace
from shoal.v1 import reward_pb2 as pb, reward_pb2_grpc

async def one_and_no_end():
    yield pb.ScoreGroupRequest()
    await asyncio.Event().wait()

async def main(address):
    with trace.span(names.GROUP_ISSUE, parent="", group_id="g7") as span:
        traceparent = trace.traceparent_of(span)
    async with connect(address, "{REWARD}") as channel:
        reward = reward_pb2_grpc.RewardServiceStub(channel)
        with trace.span(names.GROUP_SCORE, parent=traceparent):
            scores = [s async for s in reward.ScoreGroup([pb.ScoreGroupRequest()] * 3, timeout=60)]
            assert len(scores) == 3
        with trace.span(names.TRAIN_STEP, parent=traceparent), contextlib.suppress(DeadlineExceeded):
            await reward.ListVerifiers(pb.ListVerifiersRequest(), timeout=2)
        with trace.span(names.WEIGHTS_PUBLISH, parent=traceparent):
            await reward.GetStatus(pb.RewardServiceGetStatusRequest(), timeout=60)
            async for _ in reward.ScoreGroup(one_and_no_end(), timeout=60):
                break
        await asyncio.sleep(0.2)  # Lets the abandoned call end on both sides.

setup.setup("shoal-caller")
asyncio.run(main(sys.argv[1]))
setup.shutdown()
"""


async def test_one_trace_spans_caller_and_service():
    async with collecting() as collector:
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        pipe = asyncio.subprocess.PIPE
        options = ("--coordinator", "127.0.0.1:1", "--listen", "127.0.0.1:0")
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.worker_process", *options), stdin=pipe, stdout=pipe, env=environment
        )
        async with asyncio.timeout(TIMEOUT_S):
            address = json.loads(await worker.stdout.readline())["address"]
            caller = await asyncio.create_subprocess_exec(sys.executable, "-c", CALLER, address, env=environment)
            assert await caller.wait() == 0
            worker.stdin.write(b"go on\n")
            worker.send_signal(signal.SIGTERM)
            await worker.communicate()

    issue = collector.one("group.issue")
    score, step, publish = (collector.one(name) for name in ("group.score", "train.step", "weights.publish"))
    assert issue.parent_id == ""
    assert issue.attributes["shoal.group_id"] == "g7"
    assert {span.parent_id for span in (score, step, publish)} == {issue.span_id}
    calls = [span for span in collector.spans if span.name.startswith("shoal.v1.RewardService/")]
    assert {span.trace_id for span in (issue, score, step, publish, *calls)} == {issue.trace_id}

    ok, canceled, deadline_exceeded = "0", "1", "4"
    for around, method, at_client, at_server in (
        (score, "ScoreGroup", {ok}, {ok}),
        (step, "ListVerifiers", {deadline_exceeded}, {canceled}),
        # The handler reads to the end of its requests, and does not notice that the caller is gone.
        (publish, "ScoreGroup", {canceled}, {ok, canceled}),
    ):
        (client,) = (span for span in calls if span.parent_id == around.span_id)
        (server,) = (span for span in calls if span.parent_id == client.span_id)
        assert (client.service, server.service) == ("shoal-caller", "shoal-reward")
        assert client.attributes["rpc.method"] == server.attributes["rpc.method"] == method
        for span, statuses in ((client, at_client), (server, at_server)):
            assert span.attributes["rpc.grpc.status_code"] in statuses, span
            assert span.is_error == (span.attributes["rpc.grpc.status_code"] != ok), span

    methods = {span.attributes["rpc.method"] for span in calls}
    assert methods == {"ScoreGroup", "ListVerifiers"}, "periodic calls were traced"
    assert ("shoal-reward", "rpc.server.call.duration") in collector.metrics
