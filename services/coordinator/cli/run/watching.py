"""A run's events as they happen, for `run watch` and `run start --watch`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from services.coordinator.cli.run.printing import has_ended
from services.coordinator.cli.run.sources import Source
from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.output import Output

if TYPE_CHECKING:
    from services.coordinator.cli.shared.progress import ProgressView
    from shoal.v1 import coordinator_pb2 as pb


def watch_run(
    source: Source, run_id: str, after_sequence: int, output: Output, *, with_report: bool = False
) -> ExitCode:
    """Shows a run's events until it ends. Returns FAILED when the run failed.

    With `with_report` it also writes the run's report, or names the machine that can.
    """
    from services.coordinator.cli.shared.progress import ProgressView
    from shoal.v1 import coordinator_pb2 as pb
    from shoal.wire.json_form import json_line

    # This call reports a wrong address or run at once, while `follow` retries. It also fixes the run to watch: after
    # a broken stream another run may be the active one.
    run = source.get_run(run_id)
    began = run.create_time.ToNanoseconds() / 1e9
    view = ProgressView(began)

    async def show_events() -> pb.RunEvent:
        event = pb.RunEvent()
        async for event in source.follow(run.run_id, after_sequence):
            if output is Output.JSON:
                print(json_line(event), flush=True)
            else:
                view.show(event)
        return event

    if output is Output.TABLE:
        view.write(f"run {run.run_id} began at {run.create_time.ToDatetime():%Y-%m-%d %H:%M:%S} UTC", time_s=began)
    last_event = asyncio.run(show_events())
    run = source.get_run(run.run_id)
    if has_ended(run) and output is Output.TABLE:
        if run.state == pb.RUN_STATE_FAILED and run.message != last_event.message:
            # A killed coordinator leaves no event of its end.
            view.write(run.message, "error", last_event.event_time.ToNanoseconds() / 1e9 or began)
        view.summarize(run)
        if with_report:
            _show_report(run, view)
    return ExitCode.FAILED if run.state == pb.RUN_STATE_FAILED else ExitCode.OK


def _show_report(run: "pb.Run", view: "ProgressView") -> None:
    from services.coordinator.cli.shared.report_file import show_report
    from services.coordinator.store.run_record import RECORD, data_dir_option

    folder = Path(run.path)
    if (folder / RECORD).exists():
        show_report(folder, view)
    else:
        command = f"shoal report {run.run_id}{data_dir_option(folder.parent)}"
        view.write(f"the coordinator's machine has the run's folder; for a report, run there: {command}", "notice")
