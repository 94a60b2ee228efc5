"""One rank of a learner that saves, or that goes on from what another number of ranks saved.

Usage: main() with the arguments FOLDER TIMES STAGE..., by tests/support/ranks.py. The learner of two ranks saves after
three steps and takes three more; the others wait for its checkpoint, restore it and take the same three, TIMES times.
Each writes its results to FOLDER/stage-<stage>-of-<ranks>.json. A stage is ZeRO's or "unset", and may end with "-lora".
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from services.learner.commands import LearnerCommands
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.checkpoints import FileDigest
from shoal.config import RunConfig
from shoal.v1 import learner_pb2
from tests.support.configs import run_config
from tests.support.learner_results import restore_request
from tests.support.learner_saves import files_on_disk
from tests.support.train_batches import make_batch, make_groups
from tests.support.waiting import block_until

SAVED_ON = 2
SAVED_AT = 3
LAST_STEP = 6
_WAIT_S = 600.0


def main() -> None:
    limit_threads(2)
    folder, times, *stages = sys.argv[1:]
    process_group = ProcessGroup.connect()
    commands = LearnerCommands(process_group, data_dir(Path(folder), process_group.size))
    for stage in stages:
        commands.configure(stage, make_config(Path(folder), stage))
        if process_group.size == SAVED_ON:
            result = save_and_go_on(commands)
        else:
            result = restore(commands, fetch(commands, Path(folder), stage), int(times))
        if process_group.rank == 0:
            written = result_file(Path(folder), stage, process_group.size)
            written.with_suffix(".partial").write_text(json.dumps(result))
            written.with_suffix(".partial").rename(written)
        commands.learner.engine.close()
    process_group.leave()


def data_dir(folder: Path, num_ranks: int) -> Path:
    return folder / f"of-{num_ranks}"


def result_file(folder: Path, stage: str, num_ranks: int) -> Path:
    return folder / f"stage-{stage}-of-{num_ranks}.json"


def result_of(folder: Path, stage: str, num_ranks: int) -> dict[str, Any]:
    return json.loads(result_file(folder, stage, num_ranks).read_text())


def assert_same_losses(folder: Path, stage: str, num_ranks: int, *, attempt: int = 1) -> None:
    """Asserts that the steps after a restore have the losses of the ranks that saved and went on."""
    expected = result_of(folder, stage, SAVED_ON)["steps"]
    restored = result_of(folder, stage, num_ranks)["attempts"][attempt - 1]
    assert restored["version"] == f"{attempt}.{SAVED_AT}"
    for name in ("objective/loss", "loss/policy_avg", "loss/kl_avg", "optim/grad_norm"):
        losses, others = ([step[name] for step in steps] for steps in (expected, restored["steps"]))
        gaps = [abs(one - other) for one, other in zip(losses, others, strict=True)]
        largest = max(1.0, *map(abs, losses))  # The norm of the gradient is about 4; float32 has 7 digits.
        assert max(gaps) <= 1e-6 * largest, f"{name} of {SAVED_ON} ranks: {losses}; of {num_ranks}: {others}"
        assert len(set(losses)) == len(losses) > 1, f"{name} does not move: {losses}"


def make_config(folder: Path, stage: str) -> RunConfig:
    """Two groups of parameters, and a reference that follows the policy, of which checkpoints have the weights."""
    number, _, kind = stage.partition("-")
    follows = {} if kind == "lora" else {"reference_update_steps": 2, "reference_alpha": 0.5}
    return run_config(
        str(folder / "model"),
        grpo={"groups_per_step": 4},
        kl={"coef": 0.1, **follows},
        run={"num_steps": 8},
        learner={
            "zero_stage": None if number == "unset" else int(number),
            "compute_dtype": "float32",
            "learning_rate": 1e-3,
            "lr_scheduler": "linear",
            "weight_decay": 0.1,
            "weight_decay_on_bias_and_norm": kind == "lora",
            "lora": {"rank": 4 if kind == "lora" else 0},
            "pack_tokens": 48,
        },
    )


def save_and_go_on(commands: LearnerCommands) -> dict[str, Any]:
    take_steps(commands, range(SAVED_AT))
    saving = commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id="c"))
    steps = take_steps(commands, range(SAVED_AT, LAST_STEP))
    return {"files": [vars(file) for file in files_on_disk(commands, saving)], "steps": steps}


def fetch(commands: LearnerCommands, folder: Path, stage: str) -> learner_pb2.LoadCheckpointRequest:
    """Waits for the learner that saves, and copies its checkpoint; returns the request that restores it."""
    written = result_file(folder, stage, SAVED_ON)
    block_until(written.exists, f"{written} comes", timeout_s=_WAIT_S)
    if commands.process_group.rank == 0:
        shutil.copytree(data_dir(folder, SAVED_ON) / stage, data_dir(folder, commands.process_group.size) / stage)
    commands.process_group.raise_on_all(None)
    files = json.loads(written.read_text())["files"]
    return restore_request("c", [FileDigest(**fields) for fields in files])


def restore(commands: LearnerCommands, request: learner_pb2.LoadCheckpointRequest, times: int) -> dict[str, Any]:
    """Restores into a new learner, then into one that has trained."""
    attempts = []
    for attempt in range(1, times + 1):
        request.attempt = attempt
        version = commands.load_checkpoint(request)
        attempts.append({"version": str(version), "steps": take_steps(commands, range(SAVED_AT, LAST_STEP))})
    left = [path.name for path in (commands._run_dir / "checkpoints" / "c").iterdir()]
    return {"attempts": attempts, "left": left}


def take_steps(commands: LearnerCommands, numbers: range) -> list[dict[str, float]]:
    learner = commands.learner
    return [
        learner.step(make_batch(f"{number}", learner.version, groups=make_groups(seed=number))).metrics
        for number in numbers
    ]
