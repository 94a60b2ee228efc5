"""Which calls gRPC repeats by itself when a peer is UNAVAILABLE."""

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
    "shoal.v1.RewardService": ("Configure", "ScoreGroup", "CheckLabels", "ListVerifiers", "GetStatus"),
    "shoal.v1.LearnerService": (
        "Configure",
        "ComputeLogprobs",
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
        "RegisterWorker",
        "Heartbeat",
        "ListWorkers",
        "ListRollouts",
    ),
}
"""Methods that the contract calls safe to retry without changing anything in the request.

Not among them: `StartRun` (a repeat finds its own run active), `TrainStep` (its caller repeats it, with the same
step id, once it knows what became of the first), `LoadWeights` and `PublishWeights` (each is one pass of collectives
that others take part in; a repeat needs a new epoch). A stream is repeated only as long as nothing of its response
has arrived.
"""


def service_config(service_full_name: str) -> str:
    """gRPC's service config, as JSON. Five attempts are the most that gRPC makes: about 1.5 s in all."""
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
