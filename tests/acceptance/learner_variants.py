"""One rank of a learner that trains in several ways, one after the other; started by test_learner_variants.py.

Usage: python learner_variants.py FOLDER VARIANT... Writes to FOLDER/<variant>-of-<ranks>: gradient.safetensors and
result.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from services.learner.commands import LearnerCommands
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from shoal.rollout import TrainGroup
from shoal.v1 import learner_pb2
from shoal.wire import int32_to_wire
from tests.support.configs import run_config
from tests.support.learner_results import record_gradient, restore_request
from tests.support.learner_saves import files_on_disk
from tests.support.train_batches import make_batch, make_groups, with_supports

FOLLOWING = {"coef": 0.1, "reference_update_steps": 2, "reference_alpha": 0.6}
SEQUENCES: dict[str, Any] = {
    "loss": {"objective": "gspo", "baseline": "proximal", "entropy_coef": 0.01},
    "correction": {"weight": "geometric", "filters": [{"level": "sequence_mean", "low": 0.01, "reject": True}]},
}
"""Ratios, weights, filters and averages over whole completions, and a gradient through the entropy."""
REPLAY: dict[str, Any] = {"sampling": {"top_k": 6}, "loss": {"entropy_coef": 0.01}}
"""Tokens with a support each, and a gradient through the entropy of it."""
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"learner": {"zero_stage": 0}},
    "shared-rows": {"learner": {"zero_stage": 3, "sequence_parallel_size": 2}},
    "shared-rows-checkpointed": {
        "learner": {"zero_stage": 3, "sequence_parallel_size": 2, "gradient_checkpointing": True}
    },
    "sequences": {"learner": {"zero_stage": 0}} | SEQUENCES,
    "shared-rows-sequences": {"learner": {"zero_stage": 3, "sequence_parallel_size": 2}} | SEQUENCES,
    "replay": {"learner": {"zero_stage": 0}} | REPLAY,
    "replay-2": {"learner": {"zero_stage": 2}} | REPLAY,
    "replay-3": {"learner": {"zero_stage": 3}} | REPLAY,
    "shared-rows-replay": {"learner": {"zero_stage": 3, "sequence_parallel_size": 2}} | REPLAY,
    "few-keys": {"learner": {"zero_stage": 0}, "model": "model-few-keys"},
    "shared-rows-few-keys": {"learner": {"zero_stage": 3, "sequence_parallel_size": 2}, "model": "model-few-keys"},
    "second-copy": {"learner": {"zero_stage": 3, "zero_hpz_partition_size": 2}},
    "following-shared-rows": {"learner": {"zero_stage": 3, "sequence_parallel_size": 2}, "kl": FOLLOWING},
    "following-second-copy": {"learner": {"zero_stage": 3, "zero_hpz_partition_size": 2}, "kl": FOLLOWING},
    "groups": {"learner": {"zero_stage": 2, "weight_decay": 0.1, "weight_decay_on_bias_and_norm": False}},
    "following-0": {"learner": {"zero_stage": 0}, "kl": FOLLOWING},
    "following-2": {"learner": {"zero_stage": 2}, "kl": FOLLOWING},
    "following-3": {"learner": {"zero_stage": 3}, "kl": FOLLOWING},
}


def main() -> None:
    limit_threads(2)
    folder = Path(sys.argv[1])
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    for variant in sys.argv[2:]:
        result = exercise(commands, folder, variant)
        if commands.process_group.rank == 0:
            (output_of(folder, variant, commands.process_group.size) / "result.json").write_text(json.dumps(result))
    commands.process_group.leave()


def output_of(folder: Path, variant: str, num_ranks: int) -> Path:
    output = folder / f"{variant}-of-{num_ranks}"
    output.mkdir(exist_ok=True)
    return output


def exercise(commands: LearnerCommands, folder: Path, variant: str) -> dict[str, Any]:
    """Records gradients, takes steps, and takes the third step again after a restore."""
    changes = VARIANTS[variant]
    table = {"compute_dtype": "float32", "learning_rate": 1e-2, "pack_tokens": 48, "logits_chunk_tokens": 16}
    config = run_config(
        folder / changes.get("model", "model"),
        grpo={"groups_per_step": 4},
        kl={"coef": 0.1} | changes.get("kl", {}),
        sampling=changes.get("sampling", {}),
        loss=changes.get("loss", {}),
        correction=changes.get("correction", {}),
        launch={"num_learner_ranks": commands.process_group.size},
        learner=table | changes["learner"],
    )
    commands.configure(f"run-{variant}-{commands.process_group.size}", config)
    learner = commands.learner
    output = output_of(folder, variant, commands.process_group.size)
    record_gradient(learner, groups_of(commands, group_size=5), output / "gradient.safetensors")
    result: dict[str, Any] = {"started": logprobs_of(commands, learner_pb2.MODEL_REFERENCE)}
    for number in (1, 2):
        batch = make_batch(f"step-{number}", learner.version, groups=groups_of(commands, seed=number))
        result[f"step-{number}"] = learner.step(batch).metrics
    result["followed"] = logprobs_of(commands, learner_pb2.MODEL_REFERENCE)
    result["policy"] = logprobs_of(commands, learner_pb2.MODEL_POLICY)
    saving = commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id="c1"))
    saved = files_on_disk(commands, saving)
    result["files"] = [file.path for file in saved]
    request = restore_request("c1", saved)
    for attempt in (1, 2):
        batch = make_batch("step-3", learner.version, groups=groups_of(commands, seed=3))
        result[f"step-3-{attempt}"] = learner.step(batch).metrics
        learner.step(make_batch("step-4", learner.version, groups=groups_of(commands, seed=4)))
        request.attempt = attempt
        commands.load_checkpoint(request)
    result["restored"] = logprobs_of(commands, learner_pb2.MODEL_REFERENCE)
    return result


def groups_of(commands: LearnerCommands, *, group_size: int = 4, seed: int = 0) -> tuple[TrainGroup, ...]:
    groups = make_groups(num_groups=4, group_size=group_size, seed=seed)
    return with_supports(groups) if commands.learner.config.sampling.is_restricted else groups


def logprobs_of(commands: LearnerCommands, model: learner_pb2.Model.ValueType) -> list[float]:
    tokens = int32_to_wire(make_groups()[0].prompt_token_ids)
    request = learner_pb2.ComputeLogprobsRequest(token_ids=[tokens], temperature=1.0, model=model)
    (logprobs,) = commands.compute_logprobs(request)
    return [float(logprob) for logprob in torch.from_numpy(logprobs)]


if __name__ == "__main__":
    main()
