"""Retry policies of the rpcs. To change whether or how a call is retried, change only this file.

Retries happen inside gRPC, before the caller sees an error: SAFE_METHODS, with the policy of `service_config`.

Callers also act after an error, apart from these policies. The coordinator repeats a call to a learner that still
serves (services/coordinator/workers/learner_client.py). It sends the unfinished work of a lost worker to another
worker, and waits as long as a full queue asks (`generator_pool.py` and `reward_pool.py` in the same folder).
"""

import json

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
    "shoal.v1.EnvironmentService": ("ListEnvironments", "RunEpisode"),
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

These are absent: `StartRun` (a repeat finds its own run active), `TrainStep` (too large for gRPC's retry buffer),
`LoadWeights` and `PublishWeights` (each is one pass of collectives with other members; a repeat needs a new epoch).
gRPC retries a stream only until the first message of the response has arrived.
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
