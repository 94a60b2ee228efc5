"""A reward service that rewards completions that begin with "1", each at its own pace."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from shoal.errors import Internal
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import add_RewardServiceServicer_to_server
from tests.simulation.workers.plane import Plane
from tests.support.scripted_workers import ScriptedReward


class SimulatedReward(ScriptedReward):
    """Scores after up to a second; its verifier can fail, and so can the service."""

    full_name = "shoal.v1.RewardService"
    num_weight_ranks = 0
    add_to_server = staticmethod(add_RewardServiceServicer_to_server)

    def __init__(self, plane: Plane, rng: random.Random) -> None:
        super().__init__()
        self._faults = plane.faults
        self._rng = rng
        self._pace_s = rng.choice((0.01, 0.1, 1.0))
        self._state = worker_pb2.WORKER_STATE_IDLE

    def status(self) -> worker_pb2.WorkerStatus:
        return worker_pb2.WorkerStatus(state=self._state)

    async def close(self) -> None:
        pass

    async def Configure(self, request: Any, context: Any) -> reward_pb2.RewardServiceConfigureResponse:
        self._state = worker_pb2.WORKER_STATE_READY
        return reward_pb2.RewardServiceConfigureResponse(status=self.status())

    async def GetStatus(self, request: Any, context: Any) -> reward_pb2.RewardServiceGetStatusResponse:
        return reward_pb2.RewardServiceGetStatusResponse(status=self.status())

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        async for request in request_iterator:
            if request.HasField("prompt"):
                continue
            await asyncio.sleep(self._rng.random() * self._pace_s)
            if self._rng.random() < self._faults.internal_share:
                raise Internal("a verifier's process was lost")
            fails = self._faults.verifier_fails
            outcome = rollout_pb2.SCORE_OUTCOME_FAILED if fails else rollout_pb2.SCORE_OUTCOME_SCORED
            value = 0.0 if fails else float(request.completion.text.startswith("1"))
            yield reward_pb2.ScoreGroupResponse(
                score=rollout_pb2.Score(
                    sample_index=request.completion.sample_index,
                    outcome=outcome,
                    reward=value,
                    verifier_scores=[rollout_pb2.VerifierScore(verifier="gsm8k", outcome=outcome, value=value)],
                )
            )
