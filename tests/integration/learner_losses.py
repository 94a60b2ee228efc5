"""One rank of a learner that takes steps with several ways of configuring the loss; started by test_learner_losses.py.

Usage: main() with the arguments FOLDER VARIANT..., by tests/support/ranks.py. Writes to FOLDER/<ranks>: a
gradient of each variant, and result.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

from services.learner.commands import LearnerCommands
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from tests.support.learner_results import record_gradient
from tests.support.loss_variants import variant_config, varied_groups
from tests.support.train_batches import make_batch, make_groups

STAGE = 2


def main() -> None:
    limit_threads(1)
    folder = Path(sys.argv[1])
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    output = folder / str(commands.process_group.size)
    output.mkdir(exist_ok=True)
    results = {variant: exercise(commands, folder, output, variant) for variant in sys.argv[2:]}
    results["nothing left"] = reject_everything(commands, folder)
    if commands.process_group.rank == 0:
        (output / "result.json").write_text(json.dumps(results))
    commands.process_group.leave()


def exercise(commands: LearnerCommands, folder: Path, output: Path, variant: str) -> dict[str, Any]:
    """Records the gradient of one mini-batch, and takes a step of two mini-batches and two epochs.

    A second step follows where the first one changes its coefficient.
    """
    whole = variant_config(folder / "model", variant)
    grpo = {"groups_per_step": 4, "num_mini_batches": 2, "num_epochs": 2}
    learner_table = whole.learner.model_dump() | {"zero_stage": STAGE}
    commands.configure("run", variant_config(folder / "model", variant, grpo=grpo, learner=learner_table))
    learner = commands.learner
    record_gradient(learner, varied_groups(), output / f"{variant}.safetensors", whole)
    steps = [
        learner.step(make_batch(f"step-{number}", learner.version, groups=varied_groups(seed=number)))
        for number in range(2 if whole.kl.target else 1)
    ]
    return {
        "applied": [step.applied for step in steps],
        "metrics": [step.metrics for step in steps],
        "kl_coef": learner.kl_coef,
    }


def reject_everything(commands: LearnerCommands, folder: Path) -> dict[str, Any]:
    filters = [{"level": "sequence_mean", "statistic": "k2", "high": 1e-12, "reject": True}]
    commands.configure("run", variant_config(folder / "model", "icepop", correction={"filters": filters}))
    step = commands.learner.step(make_batch("step", commands.learner.version, groups=make_groups()))
    return {"applied": step.applied, "reason": step.skip_reason, "version": commands.learner.version.policy_version}
