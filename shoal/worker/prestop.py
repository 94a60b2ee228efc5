"""`python -m shoal.worker.prestop`: a preStop hook that delays the end of a worker while its coordinator ends.

When a whole deployment is deleted, all pods are told to end at the same time. But the coordinator first finishes its
train step and lets the learner write a checkpoint. So a worker waits only if the coordinator is ending, too.
"""

import argparse
import asyncio
import os
import sys
import time

from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.errors import ShoalError
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.options import add_tls_option
from shoal.rpc.channel import connect
from shoal.worker.arguments import host_port

COORDINATOR_SERVICE = "shoal.v1.CoordinatorService"
AT_MOST_S = 270.0
"""The longest wait: longer than the `--grace-s` of a coordinator in deploy/."""
_CALL_S = 5.0


def main() -> int:
    """Returns 0 when the worker may end, 1 if its credentials cannot be used. The container ends in both cases."""
    parser = argparse.ArgumentParser(
        prog="python -m shoal.worker.prestop", description="Waits while the coordinator is ending."
    )
    coordinator = os.environ.get("SHOAL_COORDINATOR")
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        type=host_port,
        default=coordinator,
        required=not coordinator,
        help="address of the coordinator [SHOAL_COORDINATOR]",
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        default=5.0,
        help="time in which the coordinator may be told to end, after this worker (default: %(default)s)",
    )
    parser.add_argument("--at-most-s", type=float, default=AT_MOST_S, help="longest wait (default: %(default)s)")
    add_tls_option(parser, "with the certificate of this worker")
    arguments = parser.parse_args()
    try:
        auth.use(auth.Credentials.of_client(arguments.tls_dir))
    except ShoalError as error:
        print(error.message, file=sys.stderr)
        return 1
    what = asyncio.run(wait_for_end(arguments.coordinator, settle_s=arguments.settle_s, at_most_s=arguments.at_most_s))
    print(f"the coordinator {what}: this worker ends", file=sys.stderr)
    return 0


async def wait_for_end(coordinator: str, *, settle_s: float, at_most_s: float, poll_s: float = 1.0) -> str:
    """Waits while the coordinator drains, at most `at_most_s`; returns a description of its state afterwards.

    Connects at once, since the coordinator's name may go away before its process does.
    """
    began = time.monotonic()
    async with connect(coordinator, COORDINATOR_SERVICE) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=COORDINATOR_SERVICE)
        while (waited_s := time.monotonic() - began) < at_most_s:
            try:
                response = await health.Check(request, timeout=_CALL_S)
            except ShoalError:
                return "is gone"
            if response.status == health_pb2.HealthCheckResponse.SERVING and waited_s >= settle_s:
                return "goes on"
            await asyncio.sleep(poll_s)
    return f"is still ending after {waited_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
