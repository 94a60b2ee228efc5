"""`shoal train` with workers that follow a script: `python -m tests.support.scripted_train train ...`.

Only the worker processes differ from the real command: one process, instead of the learner, serves a scripted learner,
generator and reward service. `SCRIPTED_STEP_S` sets the seconds of its train steps. With
`SCRIPTED_GENERATOR_UNTIL` another process, which counts as the generator, ends for good once that file appears.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from services.coordinator.cli import main, train_session
from services.coordinator.launcher import local_run
from services.coordinator.launcher.plan import ProcessPlan
from shoal.v1 import learner_pb2, worker_pb2
from tests.support.scripted_workers import Plane, ScriptedGenerator, ScriptedLearner, ScriptedReward, serve_worker
from tests.support.waiting import block_until

STEP_BEGINS = "a train step begins"


class PrintingLearner(ScriptedLearner):
    """Prints a line when a train step begins."""

    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        print(STEP_BEGINS, flush=True)
        return await super().TrainStep(request_iterator, context)


async def _serve(coordinator: str) -> None:
    plane = Plane()
    learner = PrintingLearner(plane, step_s=float(os.environ.get("SCRIPTED_STEP_S", "0.05")))
    name = os.getpid()  # Another process is another worker.
    kinds = (
        (worker_pb2.WORKER_KIND_LEARNER, learner, "learner"),
        (worker_pb2.WORKER_KIND_GENERATOR, ScriptedGenerator(plane), "generator"),
        (worker_pb2.WORKER_KIND_REWARD, ScriptedReward(), "reward"),
    )
    workers = [
        await serve_worker(coordinator, kind, servicer, f"{word}-{name}", comes_back=True)
        for kind, servicer, word in kinds
    ]
    print("serving", flush=True)
    await asyncio.gather(*(beating for _, beating in workers))
    await asyncio.Event().wait()


def _plan_workers(config: object, *, coordinator: str, data_dir: Path, gpus: object) -> list[ProcessPlan]:
    command = (sys.executable, "-m", "tests.support.scripted_train", "--serve", coordinator)
    plans = [ProcessPlan("learner", "learner", command, {})]
    if until := os.environ.get("SCRIPTED_GENERATOR_UNTIL"):
        generator = (sys.executable, "-m", "tests.support.scripted_train", "--wait", until)
        plans.append(ProcessPlan("generator", "generator", generator, {}))
    return plans


def _wait(path: Path) -> None:
    """Waits for a file, then ends in a way that no restart would change."""
    block_until(path.exists, f"{path} appears", timeout_s=600)
    sys.exit(2)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        asyncio.run(_serve(sys.argv[2]))
    elif sys.argv[1] == "--wait":
        _wait(Path(sys.argv[2]))
    else:
        train_session.plan_workers = _plan_workers  # type: ignore[assignment]
        local_run.check_extras = lambda extras: None
        main()
