"""`python -m shoal.rpc.healthcheck HOST:PORT [SERVICE]`: health of a service as an exit code.

Container runtimes without gRPC probes run it every few seconds, so it imports gRPC and nothing else.
"""

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main() -> int:
    """Returns 0 if the service is SERVING, else 1, with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m shoal.rpc.healthcheck", description="Checks the health of a service."
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument(
        "service",
        nargs="?",
        default="",
        metavar="SERVICE",
        help="for example shoal.v1.RewardService, which serves once it is configured (default: the process itself)",
    )
    parser.add_argument("--timeout-s", type=float, default=3.0, help="longest wait (default: %(default)s)")
    arguments = parser.parse_args()
    target = f"{arguments.service or 'the process'} at {arguments.address}"
    # The address is usually on this machine, which a proxy from the environment cannot reach.
    with grpc.insecure_channel(arguments.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = health_pb2.HealthCheckRequest(service=arguments.service)
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=arguments.timeout_s)
        except grpc.RpcError as error:
            print(f"{target} does not answer: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    if response.status != health_pb2.HealthCheckResponse.SERVING:
        print(f"{target} is {health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
