"""A worker process: it serves calls, registers, shows its health, and ends."""

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence

from shoal.errors import ShoalError
from shoal.network import host_of
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.permissions import Role
from shoal.rpc.server import RpcServer
from shoal.rpc.signals import RESTART_SIGNAL
from shoal.telemetry import setup as telemetry
from shoal.v1 import worker_pb2
from shoal.worker.address import advertised_address
from shoal.worker.arguments import WorkerArguments
from shoal.worker.membership import Membership, Service, WorkerService, wait_for_other_state
from shoal.worker.parent import die_with_parent
from shoal.worker.reexec import Reexec

_log = logging.getLogger(__name__)

_GRACE_S = 10.0


async def run_worker(
    service: WorkerService,
    arguments: WorkerArguments,
    reexec: Reexec | None = None,
    *,
    drain: Callable[[], Awaitable[None]] | None = None,
    beside: Sequence[Service] = (),
) -> int:
    """Serves and registers until SIGTERM or SIGINT. Returns the exit code of the process.

    The code is 0 after a drain, and 1 if the worker could not start, was refused by the coordinator, or ended FAILED.
    When the worker begins to serve, it writes one JSON line with its address to stdout. `reexec` belongs to a service
    that can restart; the caller calls `reexec.finish`. After a signal `drain` finishes work that would be lost with the
    process. During the drain the worker serves and sends heartbeats; the wait ends when the coordinator has released
    the worker. `beside` has further services of the same server, with the health of `service`.
    """
    if arguments.parent_pid is not None:
        die_with_parent(parent_pid=arguments.parent_pid)
    kind = worker_pb2.WorkerKind.Name(service.kind).removeprefix("WORKER_KIND_").lower()
    worker_id = f"{kind}-{secrets.token_hex(4)}"
    exit_code = 0
    try:
        telemetry.setup(
            f"shoal-{kind}",
            instance_id=worker_id,
            metrics_port=arguments.metrics_port,
            metrics_host=host_of(arguments.listen),
            log_file=arguments.log_file,
        )
        auth.use(auth.Credentials.of_server(Role.WORKER, tls_dir=arguments.tls_dir, tokens_file=arguments.tokens_file))
        await _serve(service, arguments, worker_id, reexec, drain, beside)
        if service.status().state == worker_pb2.WORKER_STATE_FAILED:
            exit_code = 1
    except* ShoalError as group:
        exit_code = 1
        for error in group.exceptions:
            _log.error("worker cannot continue", extra={"error": str(error)})
            print(f"{kind}: {error}", file=sys.stderr)
    finally:
        await service.close()
        telemetry.shutdown()
    return exit_code


async def _serve(
    service: WorkerService,
    arguments: WorkerArguments,
    worker_id: str,
    reexec: Reexec | None,
    drain: Callable[[], Awaitable[None]] | None,
    others: Sequence[Service],
) -> None:
    server = RpcServer(
        listen=arguments.listen,
        allow_wildcard_address=arguments.allow_wildcard_address,
    )
    for servicer in (service, *others):
        server.add(servicer.add_to_server, servicer, servicer.full_name)
    await server.start()
    # This shows the coordinator that the process that registered under this name still exists.
    await server.set_serving(worker_id, True)
    serving = {"event": "serving", "address": f"{arguments.listen.rpartition(':')[0]}:{server.port}"}
    print(json.dumps(serving | {"worker_id": worker_id}), flush=True)

    def find_address() -> str:
        return advertised_address(
            listen=arguments.listen,
            port=server.port,
            advertise=arguments.advertise,
            coordinator=arguments.coordinator,
        )

    membership = Membership(
        service,
        worker_id=worker_id,
        coordinator=arguments.coordinator,
        find_address=find_address,
        is_leaving=lambda: reexec is not None and reexec.is_due,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(membership.keep())
            beside = [keeping, tasks.create_task(_show_health(service, server, others))]

            async def leave() -> None:
                if drain is not None:
                    await _drain_until(keeping, drain)
                # A worker that refuses calls must not look alive: without heartbeats its lease expires.
                for task in beside:
                    task.cancel()

            first_signal = await server.serve_until_stopped(_GRACE_S, before_stop=leave)
            if reexec is not None and first_signal != RESTART_SIGNAL:
                reexec.cancel()
    finally:
        await server.stop(grace_s=0)


async def _drain_until(parted: "asyncio.Task[None]", drain: Callable[[], Awaitable[None]]) -> None:
    """Drains, at most until the coordinator has released the worker. Logs a drain that fails, and does not repeat
    it."""
    draining = asyncio.ensure_future(drain())
    try:
        await asyncio.wait([draining, parted], return_when=asyncio.FIRST_COMPLETED)
    finally:
        draining.cancel()
    (error,) = await asyncio.gather(draining, return_exceptions=True)
    if isinstance(error, Exception):
        _log.error("the drain failed; work in flight may be lost", exc_info=error)


async def _show_health(service: WorkerService, server: RpcServer, others: Sequence[Service]) -> None:
    """Sets the health of all services to SERVING while the service is READY, and to NOT_SERVING otherwise."""
    state = service.status().state
    while True:
        for servicer in (service, *others):
            await server.set_serving(servicer.full_name, state == worker_pb2.WORKER_STATE_READY)
        state = await wait_for_other_state(service, state, at_most_s=3600)
