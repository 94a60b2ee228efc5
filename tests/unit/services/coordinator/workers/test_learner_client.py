"""Log-probabilities under the reference: what the learner is asked, call by call."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.coordinator.workers import learner_client as module
from services.coordinator.workers.learner_client import LearnerClient
from shoal.config.live import LiveConfig, updated_config
from shoal.rollout import Support, WeightVersion
from shoal.rpc.limits import CALLS
from shoal.v1 import learner_pb2
from shoal.wire import int32_from_wire, supports_from_wire
from tests.support.groups import group_config


class Learner:
    """Answers with the tokens themselves, or with the sizes of their supports."""

    def __init__(self) -> None:
        self.calls: list[learner_pb2.ComputeLogprobsRequest] = []
        self.deadlines: list[float] = []

    async def SaveCheckpoint(self, request: Any, timeout: float) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        self.deadlines.append(timeout)
        return learner_pb2.LearnerServiceSaveCheckpointResponse()

    async def ComputeLogprobs(self, request: Any, timeout: float) -> learner_pb2.ComputeLogprobsResponse:
        self.calls.append(request)
        sequences = [int32_from_wire(data, "token_ids") for data in request.token_ids]
        supports = supports_from_wire(request, sequences)
        values = [support.counts for support in supports] or [sequence[1:] for sequence in sequences]
        return learner_pb2.ComputeLogprobsResponse(logprobs=[np.asarray(part, "<f4").tobytes() for part in values])


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Learner:
    monkeypatch.setattr(module, "NUM_TOKENS_A_CALL", 24)
    return Learner()


def client_of(learner: Learner, config: LiveConfig | None = None) -> LearnerClient:
    fleet: Any = SimpleNamespace(learner=SimpleNamespace(stub=learner, record=None))
    events: Any = None
    return LearnerClient(fleet, config or LiveConfig(group_config()), events)


def sequence(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


async def test_sequences_are_asked_for_in_calls_of_bounded_size(learner: Learner) -> None:
    values = await client_of(learner).reference_logprobs([sequence(10), sequence(14), sequence(3)], 1.0)
    assert [part.tolist() for part in values] == [list(range(1, 10)), list(range(1, 14)), [1, 2]]
    assert [len(call.token_ids) for call in learner.calls] == [2, 1]
    assert not any(call.support_token_ids or call.support_counts for call in learner.calls)


async def test_a_support_that_is_too_large_for_one_call_is_asked_for_with_beginnings_of_its_sequence(
    learner: Learner,
) -> None:
    counts = np.array([1, 9, 4, 6, 2, 7], dtype=np.int32)
    rows = [[token, *range(100, 99 + count)] for token, count in zip(range(4, 10), counts.tolist(), strict=True)]
    large = Support(np.concatenate(rows).astype(np.int32), counts)
    small = Support(np.array([2], dtype=np.int32), np.array([1], dtype=np.int32))
    values = await client_of(learner).reference_logprobs([sequence(10), sequence(3)], 1.0, [large, small])
    assert [part.tolist() for part in values] == [counts.tolist(), [1]], "one for each token of the support, in order"
    lengths = [[len(data) // 4 for data in call.token_ids] for call in learner.calls]
    assert lengths == [[6], [9], [10, 3]], lengths
    assert [sum(map(len, call.support_token_ids)) // 4 for call in learner.calls] == [10, 12, 8]


async def test_a_checkpoint_has_the_deadline_of_the_configuration_as_it_is_now(learner: Learner) -> None:
    config = LiveConfig(group_config())
    client = client_of(learner, config)
    await client.write_checkpoint("c1", WeightVersion(0, 1), [])
    config.current = updated_config(config(), {"checkpoint": {"timeout_s": 60.0}})
    await client.finish_checkpoint("c2", WeightVersion(0, 2), [])
    assert learner.deadlines == [1800.0, 60.0]


def test_the_learner_takes_a_step_beside_all_its_calls_that_broke_unnoticed() -> None:
    assert CALLS["/shoal.v1.LearnerService/TrainStep"] > module.MAX_CALLS
