"""Messages of exactly gRPC's limit, and one byte more, at each service."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.errors import ResourceExhausted
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.channel import connect
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import (
    coordinator_pb2_grpc,
    generator_pb2,
    learner_pb2,
    learner_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
)
from tests.support.cluster import Cluster
from tests.support.loopback import COORDINATOR, serving
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.secured import METHODS, secured_server

LARGE = ["GenerateGroup", "ScoreTokens", "CheckLabels", "ComputeLogprobs", "StartRun", "ScoreGroup", "TrainStep"]
PATHS = [path for path in METHODS if path.rpartition("/")[2] in LARGE]


def message(num_bytes: int) -> bytes:
    """A message of so many bytes with one field, of a number that no message has."""
    tag, num_value_bytes = b"\xc2\x3e", num_bytes - 6
    length = bytes((num_value_bytes >> shift) & 127 | (128 if shift < 21 else 0) for shift in (0, 7, 14, 21))
    return tag + length + bytes(num_value_bytes)


class Reader(learner_pb2_grpc.LearnerServiceServicer, reward_pb2_grpc.RewardServiceServicer):
    async def TrainStep(self, requests: AsyncIterator[Any], context: Any) -> learner_pb2.TrainStepResponse:
        async for _ in requests:
            pass
        return learner_pb2.TrainStepResponse()

    async def ScoreGroup(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        async for _ in requests:
            yield reward_pb2.ScoreGroupResponse()


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_of_the_largest_size_is_answered_and_a_larger_one_refused_with_both_sizes(path: str) -> None:
    assert len(message(MAX_MESSAGE_BYTES)) == MAX_MESSAGE_BYTES
    unlimited = [("grpc.max_send_message_length", -1)]
    service = path[1:].partition("/")[0]
    server = serving(Reader(), service) if METHODS[path].client_streaming else secured_server(Credentials())
    async with (
        server as address,
        grpc.aio.insecure_channel(address, options=unlimited) as channel,
    ):
        for num_bytes, status in (
            (MAX_MESSAGE_BYTES, grpc.StatusCode.OK),
            (MAX_MESSAGE_BYTES + 1, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            call = channel.unary_stream(path)(message(num_bytes), timeout=60)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            found = await call.code()
            details = await call.details()
            assert found is status, f"{num_bytes} bytes: {found} {details}"
        assert f"({MAX_MESSAGE_BYTES + 1} vs. {MAX_MESSAGE_BYTES})" in details, details


class Endless(ScriptedGenerator):
    """Answers one group with a completion that no message takes."""

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        if "/2/" in request.request_id:
            yield generator_pb2.GenerateGroupResponse(has_begun=True)
            yield generator_pb2.GenerateGroupResponse(
                completion=rollout_pb2.Completion(token_ids=bytes(MAX_MESSAGE_BYTES))
            )
        async for response in super().GenerateGroup(request, context):
            yield response


async def test_a_completion_that_no_message_takes_costs_its_group_alone(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(Endless(cluster.plane))
    _, events = await cluster.run_to_end(arithmetic_config(model, run={"num_steps": 3}))
    dropped = {group.order_number: group.drop_reason for group in await cluster.groups() if group.drop_reason}
    assert dropped.get(2) == "refused", dropped
    (told,) = [event.message for event in events if event.kind == "group_dropped"]
    assert "4194304" in told and "sampling.max_completion_tokens" in told, told


class Long(coordinator_pb2_grpc.CoordinatorServiceServicer):
    async def GetRun(self, request: pb.GetRunRequest, context: object) -> pb.GetRunResponse:
        return pb.GetRunResponse(run=pb.Run(message="x" * MAX_MESSAGE_BYTES))


async def test_the_error_of_a_message_that_is_too_large_names_part_size_and_limit() -> None:
    async with serving(Long(), COORDINATOR) as address, connect(address, COORDINATOR) as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        for request, part in (
            (pb.GetRunRequest(run_id="x" * MAX_MESSAGE_BYTES), "request"),
            (pb.GetRunRequest(), "answer"),
        ):
            with pytest.raises(ResourceExhausted, match=f"a message of the {part} has 41943.. bytes") as raised:
                await stub.GetRun(request, timeout=60)
            assert raised.value.reason == "MESSAGE_TOO_LARGE" and raised.value.retry_after_s is None
            assert raised.value.metadata["max_bytes"] == str(MAX_MESSAGE_BYTES), raised.value.metadata
