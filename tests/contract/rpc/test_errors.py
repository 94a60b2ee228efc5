"""Errors of a servicer reach the caller, for every shape of call."""

import asyncio
import base64
import json
import logging
import shutil
import sys
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from shoal import errors
from shoal.rpc.channel import connect
from shoal.rpc.errors import TABLE
from shoal.v1 import generator_pb2, generator_pb2_grpc, learner_pb2, learner_pb2_grpc, reward_pb2, reward_pb2_grpc
from tests.support.loopback import GENERATOR, LEARNER, REWARD, serving
from tests.support.processes import ended

TIMEOUT_S = 120


class Failing(
    reward_pb2_grpc.RewardServiceServicer,
    generator_pb2_grpc.GeneratorServiceServicer,
    learner_pb2_grpc.LearnerServiceServicer,
):
    error: BaseException

    async def ListVerifiers(self, request, context):
        raise self.error

    async def GenerateGroup(self, request, context):
        yield generator_pb2.GenerateGroupResponse()
        raise self.error

    async def TrainStep(self, request_iterator, context):
        async for _ in request_iterator:
            pass
        raise self.error

    async def ScoreGroup(self, request_iterator, context):
        async for _ in request_iterator:
            yield reward_pb2.ScoreGroupResponse()
        raise self.error


async def unary_unary(address):
    async with connect(address, REWARD) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        await stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)


async def unary_stream(address):
    async with connect(address, GENERATOR) as channel:
        stub = generator_pb2_grpc.GeneratorServiceStub(channel)
        async for _ in stub.GenerateGroup(generator_pb2.GenerateGroupRequest(), timeout=TIMEOUT_S):
            pass


async def stream_unary(address):
    async with connect(address, LEARNER) as channel:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        await stub.TrainStep(requests(learner_pb2.TrainStepRequest), timeout=TIMEOUT_S)


async def stream_stream(address):
    async with connect(address, REWARD) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        async for _ in stub.ScoreGroup(requests(reward_pb2.ScoreGroupRequest), timeout=TIMEOUT_S):
            pass


async def requests(message):
    for _ in range(3):
        yield message()


@pytest.fixture
def servicer():
    return Failing()


@pytest.fixture
async def address(servicer):
    async with serving(servicer, REWARD, GENERATOR, LEARNER) as address:
        yield address


SHAPES = [unary_unary, unary_stream, stream_unary, stream_stream]


@pytest.mark.parametrize("call", SHAPES)
@pytest.mark.parametrize("kind", TABLE)
async def test_every_error_reaches_the_caller_for_every_shape_of_call(servicer, address, kind, call):
    servicer.error = kind("größer als erlaubt\nzweite Zeile", reason="SOME_REASON", metadata={"run_id": "ü7"})
    with pytest.raises(errors.ShoalError) as raised:
        await call(address)
    assert type(raised.value) is kind
    assert raised.value.message == str(raised.value) == "größer als erlaubt\nzweite Zeile"
    assert raised.value.reason == "SOME_REASON"
    assert raised.value.metadata == {"run_id": "ü7"}
    assert address in raised.value.__notes__[0]


@pytest.mark.parametrize("call", SHAPES)
async def test_violations_reach_the_caller(servicer, address, call):
    violations = (errors.FieldViolation("grpo.group_size", "must be at least 2 (given: 1)"),)
    servicer.error = errors.InvalidArgument("1 field is wrong", violations=violations)
    with pytest.raises(errors.InvalidArgument) as raised:
        await call(address)
    assert raised.value.violations == violations


@pytest.mark.parametrize("retry_after_s", [None, 0.0, 2.5])
async def test_a_delay_reaches_the_caller_and_so_does_its_absence(servicer, address, retry_after_s):
    servicer.error = errors.ResourceExhausted("full", retry_after_s=retry_after_s)
    with pytest.raises(errors.ResourceExhausted) as raised:
        await unary_unary(address)
    assert raised.value.retry_after_s == retry_after_s


async def test_grpc_does_not_retry_a_peer_that_sends_a_delay_with_unavailable(servicer):
    servicer.error = errors.Unavailable("restarting", retry_after_s=15.0)
    calls = []

    async def counted(request, context):
        calls.append(request)
        raise servicer.error

    servicer.ListVerifiers = counted
    async with serving(servicer, REWARD) as address:
        with pytest.raises(errors.Unavailable) as raised:
            await unary_unary(address)
        assert raised.value.retry_after_s == 15.0
        servicer.error = errors.Unavailable("a moment")
        with pytest.raises(errors.Unavailable) as raised:
            await unary_unary(address)
        assert raised.value.retry_after_s is None
    assert len(calls) == 1 + 5, f"{len(calls)} calls: gRPC makes 5 attempts, but only one if a delay forbids retries"


@pytest.mark.parametrize("call", SHAPES)
async def test_a_defect_has_its_details_in_the_log_and_not_on_the_wire(servicer, address, call, caplog):
    servicer.error = KeyError("the password is swordfish")
    with pytest.raises(errors.Internal) as raised:
        await call(address)
    assert "swordfish" not in str(raised.value)
    assert "swordfish" in caplog.text


async def test_a_handler_whose_work_is_canceled_answers_at_once(servicer, address):
    servicer.error = asyncio.CancelledError()
    for call in SHAPES:
        with pytest.raises(errors.Aborted, match="was canceled"):
            async with asyncio.timeout(TIMEOUT_S / 2):
                await call(address)


class Refusing(learner_pb2_grpc.LearnerServiceServicer, reward_pb2_grpc.RewardServiceServicer):
    async def TrainStep(self, request_iterator, context):
        async for _ in request_iterator:
            raise errors.FailedPrecondition("the batch was built for version 3")

    async def ScoreGroup(self, request_iterator, context):
        async for _ in request_iterator:
            raise errors.FailedPrecondition("not configured")
        yield reward_pb2.ScoreGroupResponse()


async def test_a_caller_that_is_refused_during_a_stream_gets_the_reason():
    async def many(message):
        for _ in range(500):
            yield message

    async with (
        serving(Refusing(), LEARNER, REWARD) as address,
        connect(address, LEARNER) as to_learner,
        connect(address, REWARD) as to_reward,
    ):
        learner = learner_pb2_grpc.LearnerServiceStub(to_learner)
        reward = reward_pb2_grpc.RewardServiceStub(to_reward)
        for _ in range(5):
            large = learner_pb2.TrainStepRequest(group={"prompt_token_ids": bytes(100_000)})
            with pytest.raises(errors.FailedPrecondition, match="built for version 3"):
                await learner.TrainStep(many(large), timeout=TIMEOUT_S)
            with pytest.raises(errors.FailedPrecondition, match="not configured"):
                async for _ in reward.ScoreGroup(many(reward_pb2.ScoreGroupRequest()), timeout=TIMEOUT_S):
                    pass


async def test_the_longest_error_fits_into_the_trailers(servicer, address):
    servicer.error = errors.InvalidArgument(
        "長" * 10_000,
        metadata={f"key{i}": "長" * 1000 for i in range(100)},
        violations=[errors.FieldViolation(f"field{i}", "長" * 1000) for i in range(500)],
    )
    with pytest.raises(errors.InvalidArgument) as raised:
        await unary_unary(address)
    assert raised.value.message.endswith("長…"), raised.value.message[-10:]
    assert len(raised.value.violations) == 32


async def test_any_grpc_client_reads_the_details(servicer):
    servicer.error = errors.ResourceExhausted("full", metadata={"queue": "7"}, retry_after_s=2.5)
    async with serving(servicer, REWARD) as address, grpc.aio.insecure_channel(address) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert raised.value.details() == "full"
    assert ("grpc-retry-pushback-ms", "2500") in tuple(raised.value.trailing_metadata())
    status = rpc_status.from_call(raised.value)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info) and status.details[1].Unpack(retry)
    assert (info.domain, info.reason, dict(info.metadata)) == ("shoal", "RESOURCE_EXHAUSTED", {"queue": "7"})
    assert retry.retry_delay.ToMilliseconds() == 2500


async def test_buf_curl_finds_the_service_by_reflection_and_prints_the_details(servicer, address):
    buf = shutil.which("buf", path=Path(sys.executable).parent)
    assert buf, "buf-bin is part of the dev extra"
    servicer.error = errors.FailedPrecondition("not now", reason="NOT_YET")
    options = ["--protocol", "grpc", "--http2-prior-knowledge"]
    listed = await ended(buf, "curl", *options, "--list-methods", f"http://{address}")
    failed = await ended(buf, "curl", *options, f"http://{address}/{REWARD}/ListVerifiers")
    health = await ended(buf, "curl", *options, f"http://{address}/grpc.health.v1.Health/Check")
    assert f"{REWARD}/ScoreGroup" in listed.out
    assert failed.code == 8 * grpc.StatusCode.FAILED_PRECONDITION.value[0], failed
    error = json.loads(failed.err)
    assert error["message"] == "not now"
    (detail,) = error["details"]
    assert detail["type"] == "google.rpc.ErrorInfo"
    padded = detail["value"] + "=" * (-len(detail["value"]) % 4)
    assert error_details_pb2.ErrorInfo.FromString(base64.b64decode(padded)).reason == "NOT_YET"
    assert json.loads(health.out) == {"status": "SERVING"}


async def test_a_peer_that_does_not_exist_is_unavailable_and_named():
    calls = [call("127.0.0.1:1") for call in (unary_unary, unary_stream, stream_unary, stream_stream)]
    raised = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in raised} == {errors.Unavailable}, raised
    assert all("127.0.0.1:1 " in str(error) for error in raised), raised
    assert "/shoal.v1.RewardService/ListVerifiers: 127.0.0.1:1 " in str(raised[0]), raised


async def test_the_error_for_another_service_at_the_address_is_unimplemented():
    async with serving(Failing(), GENERATOR) as address:
        with pytest.raises(errors.FailedPrecondition, match="does not offer") as raised:
            await unary_unary(address)
    assert raised.value.reason == "UNIMPLEMENTED"


async def test_expected_errors_are_logged_as_info(servicer, address, caplog):
    with caplog.at_level(logging.INFO, logger="shoal.rpc"):
        for servicer.error in (errors.NotFound("no such run"), errors.DataLoss("hash differs")):
            with pytest.raises(errors.ShoalError):
                await unary_unary(address)
    levels = {record.error: record.levelname for record in caplog.records if record.getMessage() == "call refused"}
    assert levels == {"no such run": "INFO", "hash differs": "ERROR"}
