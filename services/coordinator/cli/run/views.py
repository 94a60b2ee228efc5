"""`shoal run list | status | watch | rollouts`: show runs, through a coordinator or from a folder of runs."""

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.coordinator.cli.run.printing import has_ended, print_group, print_run, state_name
from services.coordinator.cli.run.sources import Source, source_of
from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.options import Coordinator, OutputOption
from services.coordinator.cli.shared.output import Output, print_message, print_table

if TYPE_CHECKING:
    from services.coordinator.cli.shared.progress import ProgressView
    from shoal.v1 import coordinator_pb2 as pb

AnyRun = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="The run, or the path of its folder; the default is the active one, or the newest.",
        show_default=False,
    ),
]
RunsFolder = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        envvar="SHOAL_DATA_DIR",
        help="Read the runs in this folder; no coordinator is needed.",
    ),
]
RUNS = Path("runs")
_DEFAULT_LIMIT = 5
_LARGEST_LIMIT = 100


class Sort(StrEnum):
    """The orders of `run rollouts`."""

    ISSUE = "issue"
    REWARD = "reward"


def list_runs(
    context: typer.Context,
    coordinator: Coordinator = "",
    data_dir: RunsFolder = RUNS,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="Maximum number of runs to list.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the runs of a coordinator or a folder, newest first."""
    response = source_of(context, coordinator, data_dir)[0].list_runs(limit)
    if output is Output.JSON:
        print_message(response)
        return
    rows = [
        [
            run.run_id,
            state_name(run),
            f"{run.policy_version}/{run.num_steps}",
            run.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M"),
            run.last_checkpoint_id or "-",
            run.message,
        ]
        for run in response.runs
    ]
    print_table(["run", "state", "step", "started (UTC)", "checkpoint", "message"], rows)


def status(
    context: typer.Context,
    run: AnyRun = "",
    coordinator: Coordinator = "",
    data_dir: RunsFolder = RUNS,
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe a run: state, step, groups, metrics of the last step."""
    source, run = source_of(context, coordinator, data_dir, run)
    print_run(source.get_run(run), output, with_metrics=True)


def watch(
    context: typer.Context,
    run: AnyRun = "",
    coordinator: Coordinator = "",
    data_dir: RunsFolder = RUNS,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Show only the events after event N.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a run's events as they happen, until the run ends. Past events come first."""
    source, run = source_of(context, coordinator, data_dir, run)
    raise typer.Exit(watch_run(source, run, after, output))


def watch_run(
    source: Source, run_id: str, after_sequence: int, output: Output, *, with_report: bool = False
) -> ExitCode:
    """Shows a run's events until the run ends. Returns FAILED if the run failed.

    `with_report` then writes the report, or shows the command that writes it on the coordinator's machine.
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


def _show_report(ended: "pb.Run", view: "ProgressView") -> None:
    from services.coordinator.cli.shared.report_file import show_report
    from services.coordinator.store.run_record import RECORD, data_dir_option

    folder = Path(ended.path)
    if (folder / RECORD).exists():
        show_report(folder, view)
    else:
        command = f"shoal report {ended.run_id}{data_dir_option(folder.parent)}"
        view.write(f"the run's folder is on the coordinator's machine; write the report there: {command}", "notice")


def rollouts(
    context: typer.Context,
    run: AnyRun = "",
    coordinator: Coordinator = "",
    data_dir: RunsFolder = RUNS,
    step: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="List only groups that step N trained on or dropped.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="List only the last N of the groups that pass the filters.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="List only groups in which a completion has no score.")
    ] = False,
    dropped: Annotated[bool, typer.Option("--dropped", help="List only groups that were dropped.")] = False,
    sort: Annotated[
        Sort, typer.Option(help="Order of the groups: the order of issue, or by mean reward, the highest first.")
    ] = Sort.ISSUE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_LARGEST_LIMIT,
            metavar="N",
            help="List at most N groups; the default is the value of --last, or else 5.",
        ),
    ] = None,
    page: Annotated[
        str, typer.Option(help="Continue an earlier listing: give the token that it printed, and the same options.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List a run's prompts, completions and rewards.

    Also shows policy versions, and why a group was dropped or not scored.
    """
    from shoal.v1 import coordinator_pb2 as pb

    source, run = source_of(context, coordinator, data_dir, run)
    request = pb.ListRolloutsRequest(
        run_id=run,
        page_size=limit or min(last or _DEFAULT_LIMIT, _LARGEST_LIMIT),
        page_token=page,
        step=step or 0,
        failed=failed,
        dropped=dropped,
        last=last or 0,
        order=pb.ROLLOUT_ORDER_REWARD if sort is Sort.REWARD else pb.ROLLOUT_ORDER_ISSUE,
    )
    response = source.list_rollouts(request)
    if output is Output.JSON:
        print_message(response)
        return
    if not response.groups:
        print(f"no group passes the filters{f' from --page {page} on' if page else ''}", file=sys.stderr)
    for group in response.groups:
        print_group(group)
    if response.next_page_token:
        print(f"more: --page {response.next_page_token}")
