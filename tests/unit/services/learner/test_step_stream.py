"""The bound of a train step's stream, over a real socket."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.learner.request_checks import receive_step
from shoal.config import RunConfig
from shoal.config.derived import max_step_bytes
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted
from shoal.rollout import Rollout, Support, TrainGroup
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, learner_pb2_grpc, rollout_pb2
from shoal.wire import batch_to_wire
from tests.support.configs import run_config
from tests.support.loopback import LEARNER, serving
from tests.support.train_batches import START, make_batch, make_group
from tests.support.waiting import PATIENCE_S

NUM_GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = 3, 4, 200, 500


def config_of(top_k: int) -> RunConfig:
    return run_config(
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": PROMPT_TOKENS},
        grpo={"groups_per_step": NUM_GROUPS, "group_size": GROUP_SIZE},
        sampling={"max_completion_tokens": COMPLETION_TOKENS, "top_k": top_k},
    )


class Receiver(learner_pb2_grpc.LearnerServiceServicer):
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.received = 0

    async def TrainStep(self, request_iterator: Any, context: Any) -> learner_pb2.TrainStepResponse:
        self.received = len(await receive_step(request_iterator, self.config))
        return learner_pb2.TrainStepResponse(applied=True)


def largest_batch(top_k: int) -> list[learner_pb2.TrainStepRequest]:
    rng = np.random.default_rng(0)

    def full(rollout: Rollout) -> Rollout:
        counts = np.full(COMPLETION_TOKENS, top_k + 1, np.int32)
        ids = np.repeat(rollout.completion.token_ids, top_k + 1)
        completion = replace(
            rollout.completion,
            loss_mask=np.ones(COMPLETION_TOKENS, bool),
            support=Support(ids, counts) if top_k else None,
        )
        return replace(rollout, completion=completion, token_advantages=np.ones(COMPLETION_TOKENS, np.float32))

    groups = [
        make_group(
            f"g{number}", num_prompt_tokens=PROMPT_TOKENS, completion_lengths=[COMPLETION_TOKENS] * GROUP_SIZE, rng=rng
        )
        for number in range(NUM_GROUPS)
    ]
    full_groups = [
        TrainGroup(group.group_id, group.prompt_token_ids, tuple(map(full, group.rollouts))) for group in groups
    ]
    return list(batch_to_wire(make_batch("step", START, groups=full_groups)))


@pytest.mark.parametrize("top_k", [0, 50])
async def test_the_largest_step_of_a_configuration_takes_less_than_half_of_the_limit(top_k: int) -> None:
    receiver, messages = Receiver(config_of(top_k)), largest_batch(top_k)
    async with serving(receiver, LEARNER) as address, connect(address, LEARNER) as channel:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        assert (await stub.TrainStep(iter(messages), timeout=PATIENCE_S)).applied
    assert receiver.received == len(messages)
    share = sum(message.ByteSize() for message in messages) / max_step_bytes(receiver.config)
    assert 0.35 < share < 0.5, f"the largest step takes {share:.0%} of the limit"


@pytest.mark.parametrize(
    "message",
    [
        learner_pb2.TrainStepRequest(
            rollout=learner_pb2.TrainRollout(completion=rollout_pb2.Completion(token_ids=bytes(64 << 10)))
        ),
        learner_pb2.TrainStepRequest(),
    ],
    ids=["rollouts", "empty messages"],
)
async def test_a_stream_without_end_is_refused_with_the_limit_before_it_takes_more_memory(
    message: learner_pb2.TrainStepRequest,
) -> None:
    receiver = Receiver(config_of(0))
    limit, num_sent = max_step_bytes(receiver.config), 0

    async def without_end() -> AsyncIterator[learner_pb2.TrainStepRequest]:
        nonlocal num_sent
        while True:
            yield message
            num_sent += 1

    async with serving(receiver, LEARNER) as address, connect(address, LEARNER) as channel:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        with pytest.raises(ResourceExhausted, match=r"groups_per_step = 3.*max_completion") as refused:
            await stub.TrainStep(without_end(), timeout=PATIENCE_S)
    assert (refused.value.reason, refused.value.metadata) == (ErrorReason.STEP_TOO_LARGE, {"max_bytes": str(limit)})
    # gRPC holds what is on its way: the flow-control windows of both ends.
    assert num_sent * message.ByteSize() < limit + (16 << 20), f"{num_sent} messages were taken, the limit is {limit}"
    assert receiver.received == 0
