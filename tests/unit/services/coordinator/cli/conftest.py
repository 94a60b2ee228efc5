"""The command line in the test's process, and a coordinator that follows a script, over real gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from services.coordinator.cli import main
from shoal.errors import NotFound
from shoal.rpc.errors import to_status
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc, rollout_pb2, worker_pb2
from tests.support.parsed_commands import Shoal
from tests.support.remembered_texts import remembered_texts as remembered_texts
from tests.support.warm_modules import warm_modules as warm_modules

BEGAN_S = 1_700_000_000
"""Start of the run of `ScriptedCoordinator`, in seconds since the epoch."""


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shoal:
    """Runs `shoal` in this process; returns its exit code, standard output, and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()  # What libraries wrote when fixtures imported them.
        monkeypatch.setattr("sys.argv", ["shoal", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        written = capfd.readouterr()
        return code, written.out, written.err

    return run


class ScriptedCoordinator(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """A coordinator with one run, "sums". Records its requests."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.watched_runs: list[str] = []
        self.listing = pb.ListRolloutsRequest()
        self.final_state = pb.RUN_STATE_FINISHED
        self.breaks_after: int | None = None
        self.changes = True
        self.path = "/runs/sums"

    def _run(self, run_id: str, context: grpc.ServicerContext) -> pb.Run:
        if run_id not in ("", "sums"):
            abort = to_status(NotFound(f"there is no run {run_id!r}", reason="NO_RUN"))
            context.set_trailing_metadata(abort.trailing_metadata)
            context.abort(abort.code, abort.details)
        return pb.Run(
            run_id="sums", state=self.final_state, message="done", policy_version=3, num_steps=5, path=self.path,
            num_groups={"TRAINED": 24}, metrics={"objective/scores": 0.5}, create_time=Timestamp(seconds=BEGAN_S),
        )  # fmt: skip

    def StartRun(self, request, context):  # type: ignore[no-untyped-def]
        if request.resume:
            self.requests.append(("resume", request.run_id, json_format.MessageToDict(request.config)))
        else:
            self.requests.append(f"start {request.run_id} {int(request.config['grpo']['group_size'])}")
        return pb.StartRunResponse(run=self._run("", context))

    def GetRun(self, request, context):  # type: ignore[no-untyped-def]
        return pb.GetRunResponse(run=self._run(request.run_id, context))

    def ListRuns(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListRunsResponse(runs=[self._run("", context)])

    def PauseRun(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append("pause")
        return pb.PauseRunResponse(run=self._run(request.run_id, context))

    def ResumeRun(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append("resume")
        return pb.ResumeRunResponse(run=self._run(request.run_id, context))

    def UpdateRunConfig(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append(f"update {json_format.MessageToDict(request.config)}")
        changes = [
            pb.ConfigChange(field="checkpoint.keep_last", change="2 -> 3"),
            pb.ConfigChange(field="run.num_steps", change="5 -> 9", waits=True),
        ]
        run = self._run(request.run_id, context)
        run.num_steps = 9
        return pb.UpdateRunConfigResponse(run=run, changes=changes if self.changes else ())

    def StopRun(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append(f"stop {pb.StopMode.Name(request.mode)}")
        return pb.StopRunResponse(run=self._run(request.run_id, context))

    def SaveCheckpoint(self, request, context):  # type: ignore[no-untyped-def]
        return pb.SaveCheckpointResponse(checkpoint_id="step-00000003", policy_version=3)

    def ProfileRun(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append(f"profile {request.num_steps}")
        paths = [f"/data/sums/profiles/step-00000004-rank-{rank}.json.gz" for rank in range(2)]
        return pb.ProfileRunResponse(paths=paths, first_step=4, last_step=3 + request.num_steps)

    def ListWorkers(self, request, context):  # type: ignore[no-untyped-def]
        worker = pb.Worker(
            worker_id="generator-1", kind=worker_pb2.WORKER_KIND_GENERATOR, address="10.0.0.1:7000",
            state=worker_pb2.WORKER_STATE_STALE, load=worker_pb2.WorkerLoad(num_running=2, capacity=64),
        )  # fmt: skip
        return pb.ListWorkersResponse(workers=[worker])

    def ListRollouts(self, request, context):  # type: ignore[no-untyped-def]
        self.listing = request
        if request.step == 99:
            return pb.ListRolloutsResponse()
        score = rollout_pb2.Score(outcome=rollout_pb2.SCORE_OUTCOME_SCORED, reward=1.0)
        failed = rollout_pb2.Score(outcome=rollout_pb2.SCORE_OUTCOME_FAILED)
        group = pb.RolloutGroup(
            group_id="sums/0", prompt_id="sums:7", prompt_text="1 + 1?", state="TRAINED", train_step=2, staleness=1,
            rollouts=[pb.Rollout(text="2", score=score), pb.Rollout(sample_index=1, text="3", score=failed)],
        )  # fmt: skip
        return pb.ListRolloutsResponse(groups=[group], next_page_token="5")

    def WatchRun(self, request, context):  # type: ignore[no-untyped-def]
        self.requests.append(f"watch from {request.after_sequence}")
        self.watched_runs.append(request.run_id)
        for sequence in range(request.after_sequence + 1, 4):
            if self.breaks_after is not None and sequence > self.breaks_after:
                self.breaks_after = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
            attributes = {"step": sequence, "num_steps": 3, "metrics": {"objective/scores": sequence / 10}}
            event = pb.RunEvent(sequence=sequence, kind="step", attributes=json_format.ParseDict(attributes, Struct()))
            event.event_time.seconds = BEGAN_S + sequence
            yield pb.WatchRunResponse(event=event)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCoordinator]:
    server = grpc.server(ThreadPoolExecutor(4))
    servicer = ScriptedCoordinator()
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("SHOAL_COORDINATOR", f"127.0.0.1:{port}")
    yield servicer
    server.stop(None).wait()
