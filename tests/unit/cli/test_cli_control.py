"""`shoal run ...` against a coordinator that follows a script, over real gRPC."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.cli import main
from shoal.errors import NotFound
from shoal.rpc.errors import to_status
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc, rollout_pb2, worker_pb2

Shoal = Callable[..., tuple[int, str, str]]


class ScriptedCoordinator(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Knows one run, "sums", and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.watched: list[str] = []
        self.final_state = pb.RUN_STATE_FINISHED
        self.breaks_after: int | None = None

    def _run(self, run_id: str, context: grpc.ServicerContext) -> pb.Run:
        if run_id not in ("", "sums"):
            abort = to_status(NotFound(f"there is no run {run_id!r}", reason="NO_RUN"))
            context.set_trailing_metadata(abort.trailing_metadata)
            context.abort(abort.code, abort.details)
        return pb.Run(
            run_id="sums", state=self.final_state, message="done", policy_version=3, num_steps=5, path="/runs/sums",
            num_groups={"TRAINED": 24}, metrics={"objective/scores": 0.5},
        )  # fmt: skip

    def StartRun(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append(f"start {request.run_id} {int(request.config['grpo']['group_size'])}")
        return pb.StartRunResponse(run=self._run("", context))

    def GetRun(self, request, context):  # type: ignore[no-untyped-def]
        return pb.GetRunResponse(run=self._run(request.run_id, context))

    def ListRuns(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListRunsResponse(runs=[self._run("", context)])

    def PauseRun(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append("pause")
        return pb.PauseRunResponse(run=self._run(request.run_id, context))

    def ResumeRun(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append("resume")
        return pb.ResumeRunResponse(run=self._run(request.run_id, context))

    def StopRun(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append(f"stop {pb.StopMode.Name(request.mode)}")
        return pb.StopRunResponse(run=self._run(request.run_id, context))

    def SaveCheckpoint(self, request, context):  # type: ignore[no-untyped-def]
        return pb.SaveCheckpointResponse(checkpoint_id="step-00000003", policy_version=3)

    def ListWorkers(self, request, context):  # type: ignore[no-untyped-def]
        worker = pb.Worker(
            worker_id="generator-1", kind=worker_pb2.WORKER_KIND_GENERATOR, address="10.0.0.1:7000",
            state=worker_pb2.WORKER_STATE_STALE, load=worker_pb2.WorkerLoad(num_running=2, capacity=64),
        )  # fmt: skip
        return pb.ListWorkersResponse(workers=[worker])

    def ListRollouts(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append(f"rollouts {request.page_size} {request.page_token}")
        score = rollout_pb2.Score(outcome=rollout_pb2.SCORE_OUTCOME_SCORED, reward=1.0)
        failed = rollout_pb2.Score(outcome=rollout_pb2.SCORE_OUTCOME_FAILED)
        group = pb.RolloutGroup(
            group_id="sums/0", prompt_id="sums:7", prompt_text="1 + 1?", state="TRAINED", train_step=2, staleness=1,
            rollouts=[pb.Rollout(text="2", score=score), pb.Rollout(sample_index=1, text="3", score=failed)],
        )  # fmt: skip
        return pb.ListRolloutsResponse(groups=[group], next_page_token="5")

    def WatchRun(self, request, context):  # type: ignore[no-untyped-def]
        self.asked.append(f"watch from {request.after_sequence}")
        self.watched.append(request.run_id)
        for sequence in range(request.after_sequence + 1, 4):
            if self.breaks_after is not None and sequence > self.breaks_after:
                self.breaks_after = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
            attributes = {"step": sequence, "num_steps": 3, "metrics": {"objective/scores": sequence / 10}}
            event = pb.RunEvent(sequence=sequence, kind="step", attributes=json_format.ParseDict(attributes, Struct()))
            yield pb.WatchRunResponse(event=event)


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedCoordinator, str]]:
    server = grpc.server(ThreadPoolExecutor(4))
    servicer = ScriptedCoordinator()
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def shoal(
    scripted: tuple[ScriptedCoordinator, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shoal:
    """Runs the command line in this process; returns exit code, standard output and standard error."""
    monkeypatch.setenv("SHOAL_COORDINATOR", scripted[1])

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["shoal", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return int(ended.value.code or 0), written.out, written.err

    return run


def test_status_says_where_a_run_stands(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status")
    assert code == 0
    for part in ("sums", "FINISHED - done", "3 of 5", "24 TRAINED", "objective/scores  0.5"):
        assert part in text, text


def test_json_has_the_field_names_of_the_contract(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status", "sums", "--output", "json")
    run = json.loads(text)
    assert (code, run["run_id"], run["state"], run["policy_version"]) == (0, "sums", "RUN_STATE_FINISHED", "3")


def test_an_unknown_run_is_not_found(shoal: Shoal) -> None:
    assert shoal("run", "status", "tomorrow") == (4, "", "error: there is no run 'tomorrow'\n")


def test_steering_calls_what_it_says(shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]) -> None:
    commands = (["pause"], ["resume"], ["stop"], ["stop", "--mode", "drain"])
    assert [shoal("run", *command)[0] for command in commands] == [0, 0, 0, 0]
    assert scripted[0].asked == ["pause", "resume", "stop STOP_MODE_NOW", "stop STOP_MODE_DRAIN"]


def test_a_checkpoint_is_named(shoal: Shoal) -> None:
    assert shoal("run", "checkpoint")[:2] == (0, "checkpoint step-00000003 is written, of step 3\n")


def test_workers_and_runs_are_tables_on_a_pipe(shoal: Shoal) -> None:
    text = shoal("workers")[1]
    assert "generator  generator-1  10.0.0.1:7000  STALE  2+0/64" in text, text
    assert "sums  FINISHED  3/5" in shoal("run", "list")[1]


def test_rollouts_show_rewards_and_how_to_go_on(shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]) -> None:
    code, text, _ = shoal("run", "rollouts", "--limit", "1", "--page", "4")
    assert code == 0 and scripted[0].asked == ["rollouts 1 4"]
    for part in ("sums/0  TRAINED in step 2, staleness 1", "'1 + 1?'", "1.000  '2'", "FAILED  '3'", "more: --page 5"):
        assert part in text, text


def test_a_run_is_started_with_overrides_and_watched(shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]) -> None:
    code, text, _ = shoal(
        "run", "start", "configs/quickstart.toml", "--set", "grpo.group_size=4", "--name", "sums", "--watch"
    )
    assert code == 0, text
    assert scripted[0].asked == ["start sums 4", "watch from 0"]
    assert [line.partition(" s] ")[2] for line in text.splitlines()[:3]] == [
        "step 1/3  reward 0.10", "step 2/3  reward 0.20", "step 3/3  reward 0.30",
    ]  # fmt: skip


def test_a_broken_watch_goes_on_after_the_last_event(shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]) -> None:
    scripted[0].breaks_after = 2
    code, text, _ = shoal("run", "watch", "--output", "json")
    assert code == 0
    assert scripted[0].asked == ["watch from 0", "watch from 2"]
    assert [json.loads(line)["sequence"] for line in text.splitlines()] == ["1", "2", "3"]


def test_watching_a_run_that_is_not_there_is_told_at_once(
    shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]
) -> None:
    assert shoal("run", "watch", "tomorrow") == (4, "", "error: there is no run 'tomorrow'\n")
    assert scripted[0].asked == []


def test_the_run_that_is_watched_stays_the_same_over_a_broken_stream(
    shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]
) -> None:
    scripted[0].breaks_after = 1
    assert shoal("run", "watch")[0] == 0
    assert scripted[0].watched == ["sums", "sums"]


def test_watching_a_run_that_fails_exits_with_1(shoal: Shoal, scripted: tuple[ScriptedCoordinator, str]) -> None:
    scripted[0].final_state = pb.RUN_STATE_FAILED
    assert shoal("run", "watch")[0] == 1
