"""A reward service as a worker process, for tests of the worker's life: `python -m tests.support.worker_process ...`.

Its RPCs are commands: `Configure` sets the state named by `run_id`, or begins a restart if that is OTHER_RUN;
`ScoreGroup` echoes until the caller ends, and `ListVerifiers` answers when standard input holds a line.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys

from shoal.v1 import reward_pb2, reward_pb2_grpc, worker_pb2
from shoal.worker.arguments import add_worker_options, worker_arguments
from shoal.worker.process import run_worker
from shoal.worker.reexec import Program, Reexec


class ScriptedWorker(reward_pb2_grpc.RewardServiceServicer):
    kind = worker_pb2.WORKER_KIND_REWARD
    full_name = "shoal.v1.RewardService"
    add_to_server = staticmethod(reward_pb2_grpc.add_RewardServiceServicer_to_server)
    num_weight_ranks = 0

    def __init__(self, reexec=None):
        self.state = worker_pb2.WORKER_STATE_IDLE
        self.reexec = reexec

    def status(self):
        return worker_pb2.WorkerStatus(state=self.state, load={"capacity": 7})

    async def close(self):
        print("closed", flush=True)

    async def Configure(self, request, context):
        if request.run_id == "OTHER_RUN":
            raise self.reexec.begin(f"the worker holds another run than {request.run_id}")
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


def main():
    reexec = Reexec(Program.of_this_process())
    print(f"mark: {os.environ.get('SCRIPTED_MARK')}", file=sys.stderr, flush=True)
    # As services do: what they write must not reach the restarted program.
    os.environ["SCRIPTED_MARK"] = "written"
    # As a library that opens an inheritable socket, and a child that ends only with its parent.
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    arguments = worker_arguments(parser.parse_args())
    return reexec.finish(asyncio.run(run_worker(ScriptedWorker(reexec), arguments, reexec)))


if __name__ == "__main__":
    sys.exit(main())
