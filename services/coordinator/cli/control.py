"""`shoal run ...` and `shoal workers`: what the coordinator's service offers, on the command line."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format

from services.coordinator.cli.client import (
    CALL_TIMEOUT_S,
    CHECKPOINT_TIMEOUT_S,
    ENDED,
    EVALUATION_TIMEOUT_S,
    START_TIMEOUT_S,
    ask,
    coordinator,
    follow,
)
from services.coordinator.cli.exit_codes import ExitCode
from services.coordinator.cli.output import Output
from services.coordinator.cli.progress import ProgressView
from services.coordinator.cli.tables import print_message, print_pairs, print_table
from shoal.config import load_config
from shoal.config.load import config_struct
from shoal.errors import InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2, worker_pb2


def start_request(config: Path | None, overrides: Sequence[str], *, resume: str, name: str) -> pb.StartRunRequest:
    """What `train` and `run start` ask for. Raises `InvalidArgument` for options that exclude each other."""
    if resume:
        given = [text for text, value in (("CONFIG", config), ("--set", overrides), ("--name", name)) if value]
        if given:
            raise InvalidArgument(f"--resume goes on with the run as it was started: leave out {' and '.join(given)}")
        return pb.StartRunRequest(run_id=resume, resume=True)
    if config is None:
        raise InvalidArgument("which configuration? give a file such as configs/quickstart.toml, or --resume RUN")
    return pb.StartRunRequest(config=config_struct(load_config(config, overrides)), run_id=name)


def start(address: str, request: pb.StartRunRequest, *, watch: bool, output: Output) -> ExitCode:
    """Starts or resumes a run, and shows it until it ends if asked."""
    response = ask(address, lambda stub: stub.StartRun(request, timeout=START_TIMEOUT_S))
    if watch:
        return _watch(address, response.run.run_id, 0, as_json=output == "json")
    _print_run(response.run, output)
    return ExitCode.OK


def status(address: str, run_id: str, *, output: Output) -> None:
    """Describes a run."""
    response = ask(address, lambda stub: stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S))
    _print_run(response.run, output)


def watch(address: str, run_id: str, *, after_sequence: int, output: Output) -> ExitCode:
    """Shows a run's events until it ends; the exit code says how it ended."""
    return _watch(address, run_id, after_sequence, as_json=output == "json")


def steer(address: str, method: str, run_id: str, *, output: Output) -> None:
    """Calls PauseRun or ResumeRun."""
    if method == "PauseRun":
        paused = ask(address, lambda stub: stub.PauseRun(pb.PauseRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S))
        _print_run(paused.run, output)
    else:
        resumed = ask(address, lambda stub: stub.ResumeRun(pb.ResumeRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S))
        _print_run(resumed.run, output)


def stop(address: str, run_id: str, *, drain: bool, output: Output) -> None:
    """Asks a run to end."""
    mode = pb.STOP_MODE_DRAIN if drain else pb.STOP_MODE_NOW
    request = pb.StopRunRequest(run_id=run_id, mode=mode)
    _print_run(ask(address, lambda stub: stub.StopRun(request, timeout=CALL_TIMEOUT_S)).run, output)


def checkpoint(address: str, run_id: str, *, output: Output) -> None:
    """Has a checkpoint written, and waits for it."""
    request = pb.SaveCheckpointRequest(run_id=run_id)
    response = ask(address, lambda stub: stub.SaveCheckpoint(request, timeout=CHECKPOINT_TIMEOUT_S))
    if output == "json":
        print_message(response)
    else:
        print(f"checkpoint {response.checkpoint_id} is written, of step {response.policy_version}")


def evaluate(address: str, run_id: str, *, output: Output) -> None:
    """Has the policy evaluated, and waits for the result."""
    request = pb.EvaluateRequest(run_id=run_id)
    response = ask(address, lambda stub: stub.Evaluate(request, timeout=EVALUATION_TIMEOUT_S))
    if output == "json":
        print_message(response)
        return
    print(
        f"the policy of step {response.version.policy_version} answered {response.num_prompts} questions, "
        f"{response.num_scored} answers were scored"
    )
    print_pairs([(name, f"{value:g}") for name, value in sorted(response.metrics.items())])


def list_runs(address: str, limit: int, *, output: Output) -> None:
    """Lists runs, newest first."""
    response = ask(address, lambda stub: stub.ListRuns(pb.ListRunsRequest(page_size=limit), timeout=CALL_TIMEOUT_S))
    if output == "json":
        print_message(response)
        return
    rows = [
        [
            run.run_id,
            _state(run.state),
            f"{run.policy_version}/{run.num_steps}",
            run.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M"),
            run.last_checkpoint_id or "-",
            run.message,
        ]
        for run in response.runs
    ]
    print_table(["run", "state", "step", "started (UTC)", "checkpoint", "message"], rows)


def rollouts(address: str, run_id: str, limit: int, page: str, *, output: Output) -> None:
    """Lists groups with their completions."""
    request = pb.ListRolloutsRequest(run_id=run_id, page_size=limit, page_token=page)
    response = ask(address, lambda stub: stub.ListRollouts(request, timeout=CALL_TIMEOUT_S))
    if output == "json":
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


def workers(address: str, *, output: Output) -> None:
    """Lists workers."""
    response = ask(address, lambda stub: stub.ListWorkers(pb.ListWorkersRequest(), timeout=CALL_TIMEOUT_S))
    if output == "json":
        print_message(response)
        return
    rows = [
        [
            worker_pb2.WorkerKind.Name(worker.kind).removeprefix("WORKER_KIND_").lower(),
            worker.worker_id,
            worker.address,
            worker_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_"),
            f"{worker.load.num_running}+{worker.load.num_waiting}/{worker.load.capacity}",
            f"{worker.heartbeat_age.ToTimedelta().total_seconds():.0f} s",
            worker.message,
        ]
        for worker in response.workers
    ]
    print_table(["kind", "worker", "address", "state", "running+waiting/capacity", "heard", "message"], rows)


def _watch(address: str, run_id: str, after_sequence: int, *, as_json: bool) -> ExitCode:
    # A wrong address or run is told now, not after the patience that a broken stream gets; and the run that is
    # active now stays the one that is watched, whichever is active when the stream has broken.
    asked = ask(address, lambda stub: stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S))
    run_id = asked.run.run_id

    async def watching() -> pb.Run:
        view = ProgressView()
        async with coordinator(address) as stub:
            async for event in follow(stub, run_id, after_sequence):
                if as_json:
                    print(json_format.MessageToJson(event, preserving_proto_field_name=True, indent=None), flush=True)
                else:
                    view.show(event)
            response = await stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)
            if response.run.state in ENDED and not as_json:
                view.summarize(response.run)
            return response.run

    return ExitCode.FAILED if asyncio.run(watching()).state == pb.RUN_STATE_FAILED else ExitCode.OK


def _print_run(run: pb.Run, output: Output) -> None:
    if output == "json":
        print_message(run)
        return
    pairs = [
        ("run", run.run_id),
        ("state", f"{_state(run.state)} - {run.message}" if run.message else _state(run.state)),
        ("step", f"{run.policy_version} of {run.num_steps}"),
        ("restored", f"{run.attempt} times"),
        ("checkpoint", run.last_checkpoint_id or "none yet"),
        ("groups", ", ".join(f"{count} {state}" for state, count in sorted(run.num_groups.items())) or "none yet"),
        ("folder", run.path),
    ]
    print_pairs([*pairs, *((name, f"{value:g}") for name, value in sorted(run.metrics.items()))])


def _state(state: pb.RunState.ValueType) -> str:
    return pb.RunState.Name(state).removeprefix("RUN_STATE_")


def _reward(rollout: pb.Rollout) -> str:
    if not rollout.HasField("score"):
        return "-"
    if rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED:
        return f"{rollout.score.reward:.3f}"
    return rollout_pb2.ScoreOutcome.Name(rollout.score.outcome).removeprefix("SCORE_OUTCOME_")
