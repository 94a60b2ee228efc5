"""Contract test of a run whose code verifier loses its sandbox.

The coordinator, the reward service and the sandboxes are real; the learner and the generator follow a script.
"""

import asyncio
import contextlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.rollouts import whole_ledger
from services.reward.verifiers import code
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc
from tests.support.processes import running, serving_process
from tests.support.scripted_workers import Plane, ScriptedGenerator, ScriptedLearner, arithmetic_config, serving_workers

SERVICE = "shoal.v1.CoordinatorService"
NUM_STEPS = 8
RESUME = "import sys; from services.coordinator.cli import main; sys.argv[1:] = ['run', 'resume']; main()"


async def until(stub: Any, wanted: str, **attributes: str) -> pb.RunEvent:
    """Returns the first event of a kind, in the run's history or to come."""
    async for response in stub.WatchRun(pb.WatchRunRequest(), timeout=120):
        event = response.event
        if event.kind == wanted and all(event.attributes[name] == value for name, value in attributes.items()):
            return event
    raise AssertionError(f"the run ended without the event {wanted} {attributes}")


def lose_sandboxes(reward: int, bwrap: Path) -> None:
    bwrap.unlink()
    for child in psutil.Process(reward).children(recursive=True):
        # A process inside a sandbox may already have ended with it.
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "bwrap":
                child.kill()


async def test_a_run_that_loses_its_sandbox_pauses_and_resumes_without_losing_a_group(
    model: Path, tmp_path: Path
) -> None:
    if reason := code.unavailable():
        pytest.skip(f"no sandbox: {reason}")
    real_bwrap = shutil.which("bwrap")
    assert real_bwrap is not None
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.symlink_to(real_bwrap)
    # The scripted generator writes programs: "1" and "0" are valid, those with letters after the digit are not.
    row = {"messages": [{"role": "user", "content": "?"}], "ground_truth": ["assert True"], "dataset": "code"}
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(50)))
    config = arithmetic_config(
        model,
        data={"sources": [{"path": str(data)}]},
        grpo={"max_skipped_steps": 20},
        run={"num_steps": NUM_STEPS},
        coordinator={"worker_timeout_s": 120},
    )
    folder = tmp_path / "runs"
    async with serving_process("services.coordinator", "--data-dir", folder) as (_, address):
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(connect(address, SERVICE))
        worker = ("services.reward", "--coordinator", address)
        plane = Plane()
        learner, generator = ScriptedLearner(plane), ScriptedGenerator(plane, delay_s=0.02)
        async with (
            serving_process(*worker, PATH=str(bwrap.parent)) as (reward, _),
            serving_workers(address, learner, generator),
        ):
            request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()))
            run_id = (await stub.StartRun(request, timeout=60)).run.run_id
            await until(stub, "step")
            # Let the open completions finish before the sandbox disappears; later ones find no sandbox.
            generator.may_sample.clear()
            await asyncio.sleep(1.0)
            lose_sandboxes(reward.pid, bwrap)
            generator.may_sample.set()

            outage = await until(stub, "reward_outage")
            assert outage.attributes["verifier"] == "code", outage
            assert "bubblewrap is not installed" in outage.message and "shoal run resume" in outage.message, outage
            await until(stub, "state", state="PAUSED")
            # Groups that were scored before may still be trained on; after them, no step may start.
            await stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=120)  # Returns at a step boundary.
            num_batches = len(learner.batches)
            await asyncio.sleep(1.0)
            assert len(learner.batches) == num_batches < NUM_STEPS, f"{len(learner.batches)} of {NUM_STEPS} steps"

            bwrap.symlink_to(real_bwrap)
            async with running(sys.executable, "-c", RESUME, SHOAL_COORDINATOR=address) as resume:
                assert await resume.wait() == 0
            await until(stub, "state", state="FINISHED")

    events = [json.loads(line) for line in (folder / run_id / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events].count("reward_outage") == 1
    assert [event["attributes"] for event in events if event["kind"] == "group_dropped"] == []
    rows = [json.loads(line) for line in (folder / run_id / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "time/step" in row]
    assert len(learner.batches) == len(steps) == NUM_STEPS
    assert {row["val/unscored_rate"] for row in steps} == {0.0}
    assert {row["val/code_failed_rate"] for row in steps} == {0.0}
    assert all(row["time/code_scoring"] > 0 for row in steps), steps
    with contextlib.closing(whole_ledger(folder / run_id)) as ledger:
        states = Counter(ledger.execute("SELECT state, drop_reason FROM groups").fetchall())
        numbers = [number for (number,) in ledger.execute("SELECT order_number FROM groups ORDER BY order_number")]
    assert not [key for key in states if key[1] == "not_scored"], f"groups were lost: {states}"
    assert numbers == list(range(len(numbers))), "an order number is missing"
