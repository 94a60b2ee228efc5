"""`shoal run ...`: start, list, watch, and control the runs of a coordinator."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from services.coordinator.cli.exit_codes import ExitCode
from services.coordinator.cli.options import (
    ConfigFileUnlessResumed,
    Coordinator,
    NewName,
    OutputOption,
    Overrides,
    ResumedRun,
    RunName,
    checked_address,
    command_group,
    resume_request,
    start_request,
)
from services.coordinator.cli.output import Output, print_message, print_pairs, print_table

if TYPE_CHECKING:
    from shoal.v1 import coordinator_pb2 as pb

app = command_group("Start, watch, and control the runs of a coordinator on any machine.")


class Mode(StrEnum):
    """How `run stop` ends a run."""

    NOW = "now"
    DRAIN = "drain"


@app.command()
def start(
    coordinator: Coordinator = "",
    config: ConfigFileUnlessResumed = None,
    overrides: Overrides = None,
    resume: ResumedRun = "",
    name: NewName = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show progress until the run ends.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start or resume a run on the coordinator's workers."""
    from services.coordinator import client

    request = start_request(config, overrides or [], resume=resume, name=name)
    address = checked_address(coordinator)
    run = client.start_run(address, request)
    if watch:
        raise typer.Exit(_watch(address, run.run_id, 0, output))
    _print_run(run, output)


@app.command("list")
def list_runs(
    coordinator: Coordinator = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of runs to list.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the runs of a coordinator, newest first."""
    from services.coordinator import client

    response = client.list_runs(checked_address(coordinator), limit)
    if output is Output.JSON:
        print_message(response)
        return
    rows = [
        [
            run.run_id,
            _state(run),
            f"{run.policy_version}/{run.num_steps}",
            run.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M"),
            run.last_checkpoint_id or "-",
            run.message,
        ]
        for run in response.runs
    ]
    print_table(["run", "state", "step", "started (UTC)", "checkpoint", "message"], rows)


@app.command()
def status(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Describe a run: state, step, groups, metrics of the last step."""
    from services.coordinator import client

    _print_run(client.get_run(checked_address(coordinator), run), output)


@app.command()
def watch(
    run: RunName = "",
    coordinator: Coordinator = "",
    after: Annotated[int, typer.Option(min=0, help="Show only the events after this one.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a run's events as they happen, until it ends."""
    raise typer.Exit(_watch(checked_address(coordinator), run, after, output))


@app.command()
def pause(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Pause a run: no prompt is issued, sampling stops where it is, no step begins."""
    from services.coordinator import client

    _print_run(client.pause_run(checked_address(coordinator), run), output)


@app.command()
def resume(
    run: RunName = "",
    coordinator: Coordinator = "",
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Continue a paused run, or resume one that has ended from its last checkpoint, with --set where it may change."""
    from services.coordinator import client
    from shoal.errors import FailedPrecondition

    address = checked_address(coordinator)
    if run and _has_ended(client.get_run(address, run)):
        _print_run(client.start_run(address, resume_request(run, overrides or [])), output)
    elif overrides:
        raise FailedPrecondition(
            "--set changes a run that has ended: name it, and stop it first if it is active (shoal run stop)"
        )
    else:
        _print_run(client.resume_run(address, run), output)


@app.command()
def stop(
    run: RunName = "",
    coordinator: Coordinator = "",
    mode: Annotated[
        Mode,
        typer.Option(
            help="now: at the next step boundary; drain: train on what is in flight, evaluate, export the model."
        ),
    ] = Mode.NOW,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a run, with a checkpoint."""
    from services.coordinator import client

    _print_run(client.stop_run(checked_address(coordinator), run, drain=mode is Mode.DRAIN), output)


@app.command()
def checkpoint(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Write a checkpoint at the next step boundary, and wait for it."""
    from services.coordinator import client

    response = client.save_checkpoint(checked_address(coordinator), run)
    if output is Output.JSON:
        print_message(response)
    else:
        print(f"checkpoint {response.checkpoint_id} of step {response.policy_version} is written")


@app.command()
def evaluate(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Evaluate the policy on the held-out questions at the next step boundary, and wait for the result."""
    from services.coordinator import client

    response = client.evaluate(checked_address(coordinator), run)
    if output is Output.JSON:
        print_message(response)
        return
    print(
        f"the policy of step {response.version.policy_version} answered {response.num_prompts} questions, "
        f"{response.num_scored} answers were scored"
    )
    print_pairs([(name, f"{value:g}") for name, value in sorted(response.metrics.items())])


@app.command()
def rollouts(
    run: RunName = "",
    coordinator: Coordinator = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of groups to list.")] = 5,
    page: Annotated[str, typer.Option(help="Continue an earlier listing: the token that it printed.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List a run's groups in the order issued: prompts, completions, rewards, versions."""
    from services.coordinator import client

    response = client.list_rollouts(checked_address(coordinator), run, limit, page)
    if output is Output.JSON:
        print_message(response)
        return
    for group in response.groups:
        fate = f"TRAINED in step {group.train_step}" if group.train_step else group.state
        age = f", staleness {group.staleness}" if group.HasField("staleness") else ""
        reason = f" ({group.drop_reason})" if group.drop_reason else ""
        print(f"{group.group_id}  {fate}{reason}{age}  prompt {group.prompt_id}  trace {group.trace_id}")
        print(f"  {group.prompt_text!r}")
        for rollout in group.rollouts:
            print(f"  {rollout.sample_index:>3}  {_reward(rollout):>10}  {rollout.text!r}")
    if response.next_page_token:
        print(f"more: --page {response.next_page_token}")


def _watch(address: str, run_id: str, after_sequence: int, output: Output) -> ExitCode:
    """Shows a run's events until it ends. Returns FAILED when the run failed."""
    import asyncio

    from services.coordinator import client
    from services.coordinator.cli.progress import ProgressView
    from shoal.v1 import coordinator_pb2 as pb
    from shoal.wire.json_form import json_line

    # This call reports a wrong address or run at once, while `follow` retries. It also fixes the run to watch: after
    # a broken stream another run may be the active one.
    run_id = client.get_run(address, run_id).run_id

    async def watch_to_the_end() -> pb.Run:
        view = ProgressView()
        async with client.coordinator(address) as stub:
            async for event in client.follow(stub, run_id, after_sequence):
                if output is Output.JSON:
                    print(json_line(event), flush=True)
                else:
                    view.show(event)
            response = await stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=client.CALL_TIMEOUT_S)
            if _has_ended(response.run) and output is Output.TABLE:
                view.summarize(response.run)
            return response.run

    return ExitCode.FAILED if asyncio.run(watch_to_the_end()).state == pb.RUN_STATE_FAILED else ExitCode.OK


def _print_run(run: "pb.Run", output: Output) -> None:
    if output is Output.JSON:
        print_message(run)
        return
    pairs = [
        ("run", run.run_id),
        ("state", f"{_state(run)} - {run.message}" if run.message else _state(run)),
        ("step", f"{run.policy_version} of {run.num_steps}"),
        ("restored", f"{run.attempt} times"),
        ("checkpoint", run.last_checkpoint_id or "none yet"),
        ("groups", ", ".join(f"{count} {state}" for state, count in sorted(run.num_groups.items())) or "none yet"),
        ("folder", run.path),
    ]
    print_pairs([*pairs, *((name, f"{value:g}") for name, value in sorted(run.metrics.items()))])


def _has_ended(run: "pb.Run") -> bool:
    from shoal.v1 import coordinator_pb2 as pb

    return run.state in (pb.RUN_STATE_FINISHED, pb.RUN_STATE_STOPPED, pb.RUN_STATE_FAILED)


def _state(run: "pb.Run") -> str:
    from shoal.v1 import coordinator_pb2 as pb

    return pb.RunState.Name(run.state).removeprefix("RUN_STATE_")


def _reward(rollout: "pb.Rollout") -> str:
    """The reward of a scored completion, else the outcome of scoring; "-" before it."""
    from shoal.v1 import rollout_pb2

    if not rollout.HasField("score"):
        return "-"
    if rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED:
        return f"{rollout.score.reward:.3f}"
    return rollout_pb2.ScoreOutcome.Name(rollout.score.outcome).removeprefix("SCORE_OUTCOME_")
