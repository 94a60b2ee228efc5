"""Retry policies of the rpcs. To change whether or how a call is retried, change only this file.

gRPC retries before the caller sees an error: all rpcs except NOT_RETRIED, with the policy of `service_config`.

Callers also act after an error, independently of these policies. The coordinator repeats a call to a learner that still
serves (services/coordinator/workers/learner_client.py). The coordinator sends the unfinished work of a lost worker to
another worker, and waits as long as a full queue asks (`generator_pool.py` and `reward_pool.py` in the same folder).
"""

import json

from shoal.rpc.auth.permissions import SERVICES

NOT_RETRIED = frozenset({"StartRun", "TrainStep", "LoadWeights", "PublishWeights", "ProfileRun", "Profile"})
"""The rpcs that are not retried: the contract does not call them safe to repeat, or gRPC cannot retry them.

A repeat of `StartRun` would find its own run active. `TrainStep` is too large for gRPC's retry buffer. `LoadWeights`
and `PublishWeights` are each one pass of collectives with other members, and a repeat needs a new epoch. A repeat of
`ProfileRun` or `Profile` would record other steps. gRPC retries a stream only until the first message of the response
has arrived.
"""


def service_config(service_full_name: str) -> str:
    """Returns gRPC's service config, as JSON. gRPC makes at most five attempts within about 1.5 s in all."""
    names = [name for name in SERVICES.get(service_full_name, ()) if name not in NOT_RETRIED]
    if not names:
        return "{}"
    methods = [{"service": service_full_name, "method": name} for name in names]
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": methods, "retryPolicy": policy}]})
