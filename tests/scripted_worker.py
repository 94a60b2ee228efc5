"""A reward service as a worker process, for tests of the worker's life: `python -m tests.scripted_worker ...`.

Its RPCs are commands: `Configure` sets the state named by `run_id`, `ScoreGroup` echoes until the caller ends, and
`ListVerifiers` answers when standard input holds a line.
"""

import argparse
import asyncio
import os
import signal
import sys

from shoal.v1 import reward_pb2, reward_pb2_grpc, worker_pb2
from shoal.worker.arguments import add_worker_options, worker_arguments
from shoal.worker.process import run_worker


class ScriptedWorker(reward_pb2_grpc.RewardServiceServicer):
    kind = worker_pb2.WORKER_KIND_REWARD
    full_name = "shoal.v1.RewardService"
    add_to_server = staticmethod(reward_pb2_grpc.add_RewardServiceServicer_to_server)
    num_weight_ranks = 0

    def __init__(self):
        self.state = worker_pb2.WORKER_STATE_IDLE

    def status(self):
        return worker_pb2.WorkerStatus(state=self.state, load={"capacity": 7})

    async def close(self):
        print("closed", flush=True)

    async def Configure(self, request, context):
        self.state = worker_pb2.WorkerState.Value(f"WORKER_STATE_{request.run_id}")
        if self.state == worker_pb2.WORKER_STATE_FAILED:
            os.kill(os.getpid(), signal.SIGTERM)
        return reward_pb2.RewardServiceConfigureResponse(status=self.status())

    async def ListVerifiers(self, request, context):
        print("waiting", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return reward_pb2.ListVerifiersResponse()

    async def ScoreGroup(self, request_iterator, context):
        async for request in request_iterator:
            yield reward_pb2.ScoreGroupResponse(score={"sample_index": request.completion.sample_index})

    async def GetStatus(self, request, context):
        return reward_pb2.RewardServiceGetStatusResponse(status=self.status())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    sys.exit(asyncio.run(run_worker(ScriptedWorker(), worker_arguments(parser.parse_args()))))
