"""One rank of a deterministic learner; started by test_deterministic_learner.py.

Usage: main() with the arguments FOLDER PART VARIANT..., by tests/support/ranks.py. PART is "whole": save after three
steps and take three more; or "resumed": restore that checkpoint and take the same three. Each variant's metrics and
digests of weights go to FOLDER/<part>-<variant>.json.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from services.learner.commands import LearnerCommands
from services.learner.publish import published_tensors
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import RunConfig, parse_config
from shoal.v1 import learner_pb2
from tests.support.same_runs import TIMES_AND_RATES
from tests.support.train_batches import make_batch, make_groups

SAVED_AT = 3
LAST_STEP = 6
_FOLLOWS = {"coef": 0.1, "reference_update_steps": 2, "reference_alpha": 0.5}
_TWO_THREADS = {"num_threads": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "stage-0": {"learner": {"zero_stage": 0}, "kl": _FOLLOWS},
    "stage-2": {"learner": {"zero_stage": 2}, "kl": _FOLLOWS},
    "stage-3": {"learner": {"zero_stage": 3}, "kl": _FOLLOWS},
    "stage-2-adapters": {"learner": {"zero_stage": 2, "lora": {"rank": 4, "dropout": 0.1}}},
    "stage-3-adapters": {"learner": {"zero_stage": 3, "lora": {"rank": 4, "dropout": 0.1}}},
    "stage-2-two-threads": {"learner": {"zero_stage": 2}, "run": _TWO_THREADS, "kl": _FOLLOWS},
    "stage-3-two-threads": {"learner": {"zero_stage": 3}, "run": _TWO_THREADS, "kl": _FOLLOWS},
}


def main() -> None:
    limit_threads(2)
    folder, part, *variants = sys.argv[1:]
    process_group = ProcessGroup.connect()
    commands = LearnerCommands(process_group, Path(folder))
    for variant in variants:
        commands.configure(variant, make_config(Path(folder), variant))
        if part == "whole":
            take_steps(commands, range(SAVED_AT))
            files = commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id="c"))
        else:
            files = restore(commands, Path(folder), variant)
        steps = take_steps(commands, range(SAVED_AT, LAST_STEP))
        weights = digests(commands)
        if process_group.rank == 0:
            result = {"steps": steps, "weights": weights, "files": [vars(file) for file in files]}
            result_file(Path(folder), part, variant).write_text(json.dumps(result))
        commands.learner.engine.close()
    process_group.leave()


def result_file(folder: Path, part: str, variant: str) -> Path:
    return folder / f"{part}-{variant}.json"


def make_config(folder: Path, variant: str) -> RunConfig:
    changes = VARIANTS[variant]
    settings = {"compute_dtype": "float32", "learning_rate": 1e-3, "lr_scheduler": "linear", "pack_tokens": 48}
    return parse_config(
        {
            "model": {"path": str(folder / "model")},
            "data": {"sources": [{"task": "arithmetic"}]},
            "grpo": {"groups_per_step": 4, "max_staleness": 0},
            "kl": {"coef": 0.1} | changes.get("kl", {}),
            "run": {"num_steps": 8, "deterministic": True, "num_threads": 1} | changes.get("run", {}),
            "generator": {"dtype": "float32"},
            "learner": settings | changes["learner"],
        }
    )


def restore(commands: LearnerCommands, folder: Path, variant: str) -> list[Any]:
    files = json.loads(result_file(folder, "whole", variant).read_text())["files"]
    commands.load_checkpoint(
        learner_pb2.LoadCheckpointRequest(
            checkpoint_id="c", files=[learner_pb2.FileDigest(**fields) for fields in files], attempt=1
        )
    )
    return []


def take_steps(commands: LearnerCommands, numbers: range) -> list[dict[str, str]]:
    """Returns the metrics of each step, each number as its bits."""
    learner = commands.learner
    steps = [
        learner.step(make_batch(f"{number}", learner.version, groups=make_groups(seed=number))).metrics
        for number in numbers
    ]
    return [
        {name: float(value).hex() for name, value in metrics.items() if TIMES_AND_RATES.fullmatch(name) is None}
        for metrics in steps
    ]


def digests(commands: LearnerCommands) -> dict[str, str]:
    tensors = published_tensors(commands.learner.engine, commands.learner.config, commands.manifest)
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors}
