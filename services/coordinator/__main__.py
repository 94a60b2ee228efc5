"""`python -m services.coordinator`: serves runs and workers until SIGTERM, then writes the active run's checkpoint.

A restarted coordinator continues the run that it drove before.
"""

import argparse
import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

from services.coordinator.audit import record_call
from services.coordinator.launcher.checks import check_folder
from services.coordinator.launcher.plan import LOOPBACK
from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.workers.registry import WorkerRegistry
from shoal.errors import ShoalError
from shoal.models.no_torch import hide_torch
from shoal.network import host_of, is_wildcard
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.options import add_security_options
from shoal.rpc.auth.permissions import Role
from shoal.rpc.server import RpcServer
from shoal.telemetry import setup as telemetry
from shoal.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from shoal.worker.arguments import host_port, port
from shoal.worker.parent import die_with_parent

SERVICE = "shoal.v1.CoordinatorService"


def main() -> int:
    """Parses the command line and serves; returns the exit code."""
    arguments = _parser().parse_args()
    hide_torch()
    if arguments.die_with_parent:
        die_with_parent()
    try:
        telemetry.setup(
            "shoal-coordinator",
            metrics_port=arguments.metrics_port,
            metrics_host=host_of(arguments.listen),
            log_file=arguments.log_file,
        )
        auth.use(
            auth.Credentials.of_server(Role.COORDINATOR, tls_dir=arguments.tls_dir, tokens_file=arguments.tokens_file)
        )
        asyncio.run(_serve(arguments))
    except ShoalError as error:
        print(error.message, file=sys.stderr)
        return 1
    finally:
        telemetry.shutdown()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m services.coordinator", description="Drives runs; serves their workers and clients."
    )
    parser.add_argument(
        "--listen",
        type=host_port,
        default=os.environ.get("SHOAL_LISTEN") or "127.0.0.1:50050",
        metavar="HOST:PORT",
        help="address to listen on; port 0 takes a free one (default: %(default)s) [SHOAL_LISTEN]",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("SHOAL_DATA_DIR") or "runs",
        metavar="FOLDER",
        help="folder of the runs (default: %(default)s) [SHOAL_DATA_DIR]",
    )
    parser.add_argument(
        "--learner-data-dir",
        type=Path,
        default=os.environ.get("SHOAL_LEARNER_DATA_DIR") or None,
        metavar="FOLDER",
        help="path on this machine of the learner's --data-dir, for checkpoint.mirror (default: --data-dir) "
        "[SHOAL_LEARNER_DATA_DIR]",
    )
    parser.add_argument(
        "--name",
        default=os.environ.get("SHOAL_COORDINATOR_NAME") or "",
        help="name among coordinators that share a data folder: each coordinator continues its own runs (default: "
        "none) [SHOAL_COORDINATOR_NAME]",
    )
    parser.add_argument("--log-file", type=Path, help="write logs to this file instead of standard error")
    parser.add_argument(
        "--metrics-port",
        type=port,
        default=os.environ.get("SHOAL_METRICS_PORT") or None,
        metavar="PORT",
        help="port for Prometheus; 0 takes a free one (default: none) [SHOAL_METRICS_PORT]",
    )
    parser.add_argument("--port-file", type=Path, help="write host:port to this file once the service answers")
    parser.add_argument(
        "--grace-s",
        type=float,
        default=60.0,
        help="longest wait for the active run's checkpoint, in seconds (default: %(default)s)",
    )
    parser.add_argument("--die-with-parent", action="store_true", help="end when the parent process ends")
    add_security_options(parser)
    return parser


async def _serve(arguments: argparse.Namespace) -> None:
    registry = WorkerRegistry()
    runs = Runs(arguments.data_dir, registry, name=arguments.name, learner_data_dir=arguments.learner_data_dir)
    check_folder(arguments.data_dir)
    server = RpcServer(
        listen=arguments.listen,
        allow_wildcard_address=arguments.allow_wildcard_address,
        audit=partial(record_call, runs),
    )
    server.add(add_CoordinatorServiceServicer_to_server, CoordinatorService(runs, registry), SERVICE)
    await server.open()  # A coordinator that cannot serve must not begin an attempt of its run.
    host = LOOPBACK if is_wildcard(host_of(arguments.listen)) else arguments.listen.rpartition(":")[0]
    runs.address = f"{host}:{server.port}"
    runs.take_up()
    await server.start()
    await server.set_serving(SERVICE, True)
    address = f"{arguments.listen.rpartition(':')[0]}:{server.port}"
    print(json.dumps({"event": "serving", "address": address}), flush=True)
    if arguments.port_file is not None:
        temporary = arguments.port_file.with_suffix(".tmp")
        temporary.write_text(f"{address}\n")
        temporary.rename(arguments.port_file)  # Atomic: a reader never sees half of it.
    expiring = asyncio.create_task(registry.expire_forever())
    await server.serve_until_stopped(before_stop=lambda: runs.close(arguments.grace_s))
    expiring.cancel()


if __name__ == "__main__":
    sys.exit(main())
