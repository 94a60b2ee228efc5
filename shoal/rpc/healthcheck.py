"""`python -m shoal.rpc.healthcheck HOST:PORT [SERVICE]`: health of a service as an exit code.

Container runtimes whose gRPC probes are missing or cannot speak TLS run this program every few seconds, so the program
imports little. With `--tls-dir` the program shows the certificate of the service that is probed.
"""

import argparse
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.errors import ShoalError
from shoal.rpc.auth.options import add_tls_option
from shoal.rpc.auth.tls import TlsFolder


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
    add_tls_option(parser, "with the certificate of the service itself")
    arguments = parser.parse_args()
    target = f"{arguments.service or 'the process'} at {arguments.address}"
    try:
        channel = _channel(arguments.address, arguments.tls_dir)
    except ShoalError as error:
        print(error.message, file=sys.stderr)
        return 1
    with channel:
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


def _channel(address: str, tls_dir: Path | None) -> grpc.Channel:
    # The address is usually on this machine, where a proxy from the environment cannot reach it.
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if tls_dir is None:
        return grpc.insecure_channel(address, options=options)
    files = TlsFolder(tls_dir).current()
    if files.facts is not None and files.facts.names:
        # The server shows the same certificate, which does not contain the address that the probe uses.
        options.append(("grpc.ssl_target_name_override", files.facts.names[0]))
    return grpc.secure_channel(address, files.channel_credentials(), options=options)


if __name__ == "__main__":
    sys.exit(main())
