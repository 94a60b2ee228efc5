"""Calls of a client: begin, end, cancellation, retries."""

import asyncio

import grpc
import numpy as np
import pytest

from shoal import errors
from shoal.rollout import Completion, FinishReason, Rollout, TrainBatch, TrainGroup, VersionSpan, WeightVersion
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2, generator_pb2_grpc, learner_pb2, learner_pb2_grpc, reward_pb2, reward_pb2_grpc
from shoal.wire import batch_from_wire, batch_to_wire
from tests.support.local_stack import free_port
from tests.support.loopback import GENERATOR, LEARNER, REWARD, serving

TIMEOUT_S = 120
REFUSED = 99
"""A sample index for which a stream is refused."""


class Recording(
    reward_pb2_grpc.RewardServiceServicer,
    generator_pb2_grpc.GeneratorServiceServicer,
    learner_pb2_grpc.LearnerServiceServicer,
):
    def __init__(self):
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.num_calls = 0
        self.num_failures = 0

    async def ListVerifiers(self, request, context):
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.closed.set()

    async def GenerateGroup(self, request, context):
        self.begun.set()
        try:
            while True:
                yield generator_pb2.GenerateGroupResponse()
                await asyncio.sleep(0.01)
        finally:
            self.closed.set()

    async def ScoreGroup(self, request_iterator, context):
        self.begun.set()
        async for request in request_iterator:
            if request.completion.sample_index == REFUSED:
                raise errors.InvalidArgument("completion.sample_index")
            yield reward_pb2.ScoreGroupResponse(score={"sample_index": request.completion.sample_index})

    async def Configure(self, request, context):
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise errors.Unavailable("not yet")
        return reward_pb2.RewardServiceConfigureResponse(status={"run_id": f"{len(request.run_id)}"})

    async def TrainStep(self, request_iterator, context):
        self.num_calls += 1
        async for _ in request_iterator:
            pass
        raise errors.Unavailable("the learner ended")


@pytest.fixture
def servicer():
    return Recording()


@pytest.fixture
async def address(servicer):
    async with serving(servicer, REWARD, GENERATOR, LEARNER) as address:
        yield address


@pytest.fixture
async def reward(address):
    async with connect(address, REWARD) as channel:
        yield reward_pb2_grpc.RewardServiceStub(channel)


@pytest.fixture
async def generator(address):
    async with connect(address, GENERATOR) as channel:
        yield generator_pb2_grpc.GeneratorServiceStub(channel)


def completion(sample_index):
    return reward_pb2.ScoreGroupRequest(completion={"sample_index": sample_index})


async def within(event):
    async with asyncio.timeout(TIMEOUT_S):
        await event.wait()


async def test_a_call_without_a_deadline_is_refused_by_name(reward, generator):
    for invoke, name in (
        (lambda: reward.ListVerifiers(reward_pb2.ListVerifiersRequest()), "RewardService/ListVerifiers"),
        (lambda: reward.ScoreGroup(iter(())), "RewardService/ScoreGroup"),
        (lambda: generator.GenerateGroup(generator_pb2.GenerateGroupRequest()), "GeneratorService/GenerateGroup"),
    ):
        with pytest.raises(ValueError, match=f"/shoal.v1.{name} "):
            invoke()


async def test_a_deadline_beyond_gRPCs_clock_has_not_passed(reward):
    response = await reward.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="run"), timeout=1e12)
    assert response.status.run_id == "3"


async def test_a_deadline_that_passes_is_named_and_ends_the_handler(servicer, address, reward):
    while not servicer.begun.is_set():  # A deadline may pass before the handler has begun.
        with pytest.raises(errors.DeadlineExceeded, match=rf"ListVerifiers at {address} .*0\.3 s"):
            await reward.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=0.3)
    await within(servicer.closed)


@pytest.mark.parametrize("source", ["async generator", "generator", "list"])
async def test_requests_may_come_from_any_iterable(reward, source):
    async def drip():
        for index in range(3):
            yield completion(index)

    requests = {"async generator": drip(), "generator": (completion(i) for i in range(3))}.get(
        source, [completion(i) for i in range(3)]
    )
    scores = [response.score.sample_index async for response in reward.ScoreGroup(requests, timeout=TIMEOUT_S)]
    assert scores == [0, 1, 2]


async def test_a_stream_can_be_written_and_read_step_by_step(reward):
    call = reward.ScoreGroup(timeout=TIMEOUT_S)
    for index in range(3):
        await call.write(completion(index))
        assert (await call.read()).score.sample_index == index
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_the_error_of_a_source_of_requests_is_raised(reward):
    async def broken():
        yield completion(0)
        raise LookupError("the ledger has no such group")

    with pytest.raises(LookupError, match="no such group"):
        async for _ in reward.ScoreGroup(broken(), timeout=TIMEOUT_S):
            pass


async def test_a_source_of_requests_ends_with_its_call(reward):
    has_ended = asyncio.Event()

    async def waiting():
        try:
            yield completion(REFUSED)
            await asyncio.sleep(3600)
        finally:
            has_ended.set()

    with pytest.raises(errors.InvalidArgument, match="sample_index"):
        async for _ in reward.ScoreGroup(waiting(), timeout=TIMEOUT_S):
            pass
    await within(has_ended)


async def test_a_stream_that_the_client_leaves_is_canceled_on_the_server(servicer, generator):
    async for _ in generator.GenerateGroup(generator_pb2.GenerateGroupRequest(), timeout=TIMEOUT_S):
        break
    await within(servicer.closed)


async def test_a_stream_continues_after_a_break_at_its_first_message(reward):
    call = reward.ScoreGroup([completion(i) for i in range(3)], timeout=TIMEOUT_S)
    async for response in call:
        assert response.score.sample_index == 0
        break
    assert [response.score.sample_index async for response in call] == [1, 2]


async def test_canceling_the_task_cancels_the_call_on_the_server(servicer, reward, generator):
    async def unary():
        await reward.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)

    async def stream():
        async for _ in generator.GenerateGroup(generator_pb2.GenerateGroupRequest(), timeout=TIMEOUT_S):
            pass

    for use in (unary, stream):
        servicer.begun.clear()
        servicer.closed.clear()
        task = asyncio.create_task(use())
        await within(servicer.begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await within(servicer.closed)


async def test_canceling_the_call_object_ends_it(servicer, generator):
    call = generator.GenerateGroup(generator_pb2.GenerateGroupRequest(), timeout=TIMEOUT_S)
    num_responses = 0
    with pytest.raises(asyncio.CancelledError):
        async for _ in call:
            num_responses += 1
            call.cancel()
    assert num_responses == 1
    assert call.cancelled()
    await within(servicer.closed)


async def test_a_closed_channel_is_unavailable_and_cancels_no_caller(servicer, address):
    channel = connect(address, REWARD)
    reward = reward_pb2_grpc.RewardServiceStub(channel)

    async def use():
        await reward.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)

    task = asyncio.create_task(use())
    await within(servicer.begun)
    await channel.close()
    for attempt in (task, use()):
        with pytest.raises(errors.Unavailable, match=f"the channel to {address} was closed") as raised:
            await attempt
        assert raised.value.reason == "CHANNEL_CLOSED"


async def test_a_large_request_is_retried_while_the_peer_is_unavailable(servicer, reward):
    servicer.num_failures = 3
    run_id = "x" * 3_000_000
    response = await reward.Configure(reward_pb2.RewardServiceConfigureRequest(run_id=run_id), timeout=TIMEOUT_S)
    assert response.status.run_id == "3000000"
    assert servicer.num_calls == 4


async def test_a_channel_reconnects_soon_after_a_restart_of_the_peer():
    port = free_port()
    async with connect(f"127.0.0.1:{port}", REWARD) as channel:
        reward = reward_pb2_grpc.RewardServiceStub(channel)
        request = reward_pb2.RewardServiceConfigureRequest()
        for _ in range(2):
            with pytest.raises(errors.Unavailable):
                await reward.Configure(request, timeout=TIMEOUT_S)
            async with serving(Recording(), REWARD, port=port):
                await reward.Configure(request, timeout=TIMEOUT_S, wait_for_ready=True)


class Reading(learner_pb2_grpc.LearnerServiceServicer):
    def __init__(self, num_sent):
        self.num_sent = num_sent
        self.has_all = asyncio.Event()
        self.outcome = asyncio.get_running_loop().create_future()

    async def TrainStep(self, request_iterator, context):
        messages = []
        try:
            async for message in request_iterator:
                messages.append(message)
                if len(messages) == self.num_sent:
                    self.has_all.set()
            self.outcome.set_result(batch_from_wire(messages))
        except (errors.InvalidArgument, asyncio.CancelledError) as error:
            self.outcome.set_result(error)
        return learner_pb2.TrainStepResponse()


@pytest.mark.parametrize("num_sent", [2, 3, 4, 6])
async def test_the_partial_batch_of_a_caller_that_disconnects_is_refused(num_sent):
    """gRPC may end the requests of a caller that disconnects before it cancels the call."""
    version = WeightVersion(attempt=0, policy_version=0)
    tokens, logprobs = np.arange(3, dtype=np.int32), np.zeros(3, dtype=np.float32)
    completion = Completion(0, tokens, logprobs, FinishReason.STOP, (VersionSpan(version, 0, 3),), seed=0)
    rollout = Rollout(completion, advantage=1.0)
    groups = tuple(TrainGroup(f"g{i}", tokens, (rollout, rollout)) for i in range(2))
    batch = TrainBatch("step-1", version, temperature=1.0, groups=groups)

    async def cut_off():
        for message in list(batch_to_wire(batch))[:num_sent]:
            yield message
        await asyncio.Event().wait()

    servicer = Reading(num_sent)
    async with serving(servicer, LEARNER) as address, connect(address, LEARNER) as channel:
        call = learner_pb2_grpc.LearnerServiceStub(channel).TrainStep(cut_off(), timeout=TIMEOUT_S)
        await within(servicer.has_all)
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            outcome = await servicer.outcome
    if not isinstance(outcome, asyncio.CancelledError):
        assert isinstance(outcome, errors.InvalidArgument), outcome
        assert "announced 2 " in outcome.message
