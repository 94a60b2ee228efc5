"""The workers of a scripted `shoal train`: `python -m tests.support.scripted_train_workers COORDINATOR`.

One process serves a scripted learner, generator and reward service. `SCRIPTED_STEP_S` sets the seconds of a train step.
The reward service fails while the file that `SCRIPTED_REWARD_FAILS_WHILE` names is there.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.permissions import Role
from shoal.v1 import learner_pb2
from tests.support.scripted_workers import Plane, ScriptedGenerator, ScriptedLearner, ScriptedReward, serve_worker

STEP_BEGINS = "a train step begins"


class PrintingLearner(ScriptedLearner):
    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        print(STEP_BEGINS, flush=True)
        return await super().TrainStep(request_iterator, context)


class FailingReward(ScriptedReward):
    @property
    def failing(self) -> bool:
        return (name := os.environ.get("SCRIPTED_REWARD_FAILS_WHILE", "")) != "" and Path(name).exists()

    @failing.setter
    def failing(self, value: bool) -> None:
        pass


async def _serve(coordinator: str) -> None:
    if accepted := os.environ.get("SHOAL_TOKENS_FILE"):  # `shoal train --private`
        auth.use(auth.Credentials.of_server(Role.WORKER, tls_dir=None, tokens_file=Path(accepted)))
    plane = Plane()
    learner = PrintingLearner(plane, step_s=float(os.environ.get("SCRIPTED_STEP_S", "0.05")))
    name = os.getpid()  # Another process is another worker.
    kinds = ((learner, "learner"), (ScriptedGenerator(plane), "generator"), (FailingReward(), "reward"))
    workers = [await serve_worker(coordinator, servicer, f"{word}-{name}", comes_back=True) for servicer, word in kinds]
    print("serving", flush=True)
    await asyncio.gather(*(beating for _, beating in workers))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
