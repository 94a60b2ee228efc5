"""`shoal train` with workers that follow a script: `python -m tests.support.scripted_train train ...`.

Only the worker processes differ from the real command: one process, instead of the learner, serves the workers of
scripted_train_workers.py. With `SCRIPTED_GENERATOR_UNTIL` another process, which counts as the generator, ends for good
once that file appears.
"""

import os
import sys
from pathlib import Path

from services.coordinator.cli import main, train_session
from services.coordinator.launcher import local_run
from services.coordinator.launcher.plan import ProcessPlan

# Its exit code is one after which a restart would change nothing.
_WAIT = 'until [ -e "$0" ]; do sleep 0.05; done; exit 2'


def _plan_workers(config: object, *, coordinator: str, data_dir: Path, gpus: object) -> list[ProcessPlan]:
    command = (sys.executable, "-m", "tests.support.scripted_train_workers", coordinator)
    plans = [ProcessPlan("learner", "learner", command, {})]
    if until := os.environ.get("SCRIPTED_GENERATOR_UNTIL"):
        plans.append(ProcessPlan("generator", "generator", ("/bin/sh", "-c", _WAIT, until), {}))
    return plans


if __name__ == "__main__":
    train_session.plan_workers = _plan_workers  # type: ignore[assignment]
    local_run.check_extras = lambda extras: None
    main()
