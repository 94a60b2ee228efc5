"""Retry policies of the rpcs. To change whether or how a call is retried, change this file alone.

Most retries happen inside gRPC, before the caller sees an error: SAFE_METHODS, with the policy of `service_config`.
`TrainStep` is too large for gRPC's retry buffer, so its caller retries it: TRAIN_STEP.

What callers do after an error is no retry policy: the coordinator sends work that a lost worker did not finish to
another one, and waits as long as a full queue asks (services/coordinator/workers/{generator,reward}_pool.py).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import Unavailable

_T = TypeVar("_T")

SAFE_METHODS: dict[str, tuple[str, ...]] = {
    "shoal.v1.GeneratorService": (
        "Configure",
        "GenerateGroup",
        "JoinWeightGroup",
        "LeaveWeightGroup",
        "PauseGeneration",
        "ResumeGeneration",
        "Sleep",
        "Wake",
        "ScoreTokens",
        "GetStatus",
    ),
    "shoal.v1.RewardService": (
        "Configure",
        "ScoreGroup",
        "CheckLabels",
        "ReloadVerifiers",
        "ListVerifiers",
        "GetStatus",
    ),
    "shoal.v1.LearnerService": (
        "Configure",
        "ComputeLogprobs",
        "SetHyperparameters",
        "CreateWeightGroup",
        "SaveCheckpoint",
        "LoadCheckpoint",
        "ExportModel",
        "GetStatus",
    ),
    "shoal.v1.CoordinatorService": (
        "GetRun",
        "ListRuns",
        "WatchRun",
        "PauseRun",
        "ResumeRun",
        "StopRun",
        "SaveCheckpoint",
        "Evaluate",
        "UpdateRunConfig",
        "RegisterWorker",
        "Heartbeat",
        "ListWorkers",
        "ListRollouts",
    ),
}
"""Methods that the contract calls safe to retry with the same request.

These are absent: `StartRun` (a repeat finds its own run active), `TrainStep` (see TRAIN_STEP), `LoadWeights` and
`PublishWeights` (each is one pass of collectives with other members; a repeat needs a new epoch). gRPC retries a
stream only until the first message of the response has arrived.
"""


def service_config(service_full_name: str) -> str:
    """Returns gRPC's service config, as JSON. gRPC makes at most five attempts: about 1.5 s in all."""
    methods = [{"service": service_full_name, "method": method} for method in SAFE_METHODS.get(service_full_name, ())]
    if not methods:
        return "{}"
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": methods, "retryPolicy": policy}]})


@dataclass(frozen=True)
class CallerRetries:
    """Retries that the caller makes itself, while the peer is UNAVAILABLE."""

    max_attempts: int
    pause_s: float

    async def call(self, start: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the result of the first call that succeeds. Raises the `Unavailable` of the last attempt."""
        for _ in range(self.max_attempts - 1):
            try:
                return await start()
            except Unavailable:
                await asyncio.sleep(self.pause_s)
        return await start()


TRAIN_STEP = CallerRetries(max_attempts=3, pause_s=1.0)
"""`LearnerService.TrainStep`. The step's id keeps the learner from applying a repeat."""
