"""`shoal workers`."""

from services.coordinator.cli.shared.options import Coordinator, OutputOption, checked_address
from services.coordinator.cli.shared.output import Output, print_message, print_table


def workers(coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """List the workers that a coordinator knows."""
    from services.coordinator import client
    from shoal.v1 import worker_pb2

    response = client.list_workers(checked_address(coordinator))
    if output is Output.JSON:
        print_message(response)
        return
    rows = [
        [
            worker_pb2.WorkerKind.Name(worker.kind).removeprefix("WORKER_KIND_").lower(),
            worker.worker_id,
            worker.address,
            worker_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_"),
            f"{worker.load.num_running}+{worker.load.num_waiting}/{worker.load.capacity}",
            f"{worker.load.kv_cache_use:.0%}" if worker.load.HasField("kv_cache_use") else "",
            f"{worker.heartbeat_age.ToTimedelta().total_seconds():.0f} s",
            worker.message,
        ]
        for worker in response.workers
    ]
    titles = ["kind", "worker", "address", "state", "running+waiting/capacity", "cache in use", "heartbeat", "message"]
    print_table(titles, rows)
