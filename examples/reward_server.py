"""A reward server: two rpcs of `shoal.v1.RewardService`, with nothing of Shoal but its contract.

    python examples/reward_server.py 127.0.0.1:7010

It needs grpcio, protobuf and the stubs of `proto/shoal/v1`, here those that Shoal ships; stubs of any language work.
"""

import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from shoal.v1 import reward_pb2, reward_pb2_grpc, rollout_pb2

WORD_BUDGET = reward_pb2.VerifierInfo(
    name="word_budget",
    description="How well a completion keeps to a number of words. Label: that number. Value: 1 up to it, from there "
    "falling to 0 at twice as many.",
)


class RewardServer(reward_pb2_grpc.RewardServiceServicer):
    """Omits `Configure`, `GetStatus` and `CheckLabels`, which a reward server does not need."""

    def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
        return reward_pb2.ListVerifiersResponse(verifiers=[WORD_BUDGET])

    def ScoreGroup(
        self, request_iterator: Iterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> Iterator[reward_pb2.ScoreGroupResponse]:
        """Reads the prompt, then completions; yields one score for each as soon as it is known."""
        prompt = next(request_iterator).prompt
        for request in request_iterator:
            yield reward_pb2.ScoreGroupResponse(score=score(prompt.ground_truths[0], request.completion))


def score(truth: rollout_pb2.GroundTruth, completion: rollout_pb2.Completion) -> rollout_pb2.Score:
    """Scores one completion. `reward` is the verifier's value, and counts if `outcome` is SCORED."""
    result = rollout_pb2.Score(sample_index=completion.sample_index)
    try:
        # A number in the data travels as text, since numbers of a google.protobuf.Value are doubles.
        budget = int(truth.label.string_value)
    except ValueError:
        result.outcome = rollout_pb2.SCORE_OUTCOME_UNSCORABLE
        return result
    result.outcome = rollout_pb2.SCORE_OUTCOME_SCORED
    result.reward = min(1.0, max(0.0, 2 - len(completion.text.split()) / budget)) if budget > 0 else 0.0
    return result


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    reward_pb2_grpc.add_RewardServiceServicer_to_server(RewardServer(), server)
    port = server.add_insecure_port(sys.argv[1])
    server.start()
    print(f"listening on port {port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
