"""One rank of a learner that does each of its tasks once; started by test_learner_ranks.py, alone or with others.

Usage: main() with the arguments FOLDER STAGE..., by tests/support/ranks.py or as a program. Writes to
FOLDER/stage-<stage>-of-<ranks>: gradient.safetensors and result.json. A stage is ZeRO's, and may end with "-offloaded"
or, for adapters on a frozen model, with "-lora", "-dropout" or "-nf4", or for a frozen part with "-frozen". With
"-bfloat16" each rank computes one row, in bfloat16, and records its gradient alone.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from services.learner.commands import LearnerCommands
from services.learner.engine import deepspeed_settings
from services.learner.learner import Learner
from services.learner.model.weights import whole_shape
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import list_files, sha256_of
from services.learner.storage.checkpoint_export import export_checkpoint
from services.learner.storage.checkpoints import FileDigest
from shoal.config import RunConfig
from shoal.config.changes import changed_config
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2, weights_pb2
from shoal.wire import int32_to_wire
from tests.support.configs import run_config
from tests.support.learner_results import record_gradient, restore_request
from tests.support.learner_saves import files_on_disk
from tests.support.train_batches import make_batch, make_groups, with_behavior

FROZEN = ["model.embed_tokens", "model.layers.0."]


def main() -> None:
    limit_threads(2)
    folder = Path(sys.argv[1])
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    # Offloading is refused without a GPU, because it saves nothing there. It works all the same.
    deepspeed_settings.check_machine = lambda *_, **__: None
    for stage in sys.argv[2:]:
        result = exercise(commands, folder, stage)
        if commands.process_group.rank == 0:
            (output_of(folder, stage, commands.process_group.size) / "result.json").write_text(json.dumps(result))
        commands.learner.engine.close()
    commands.process_group.leave()


def output_of(folder: Path, stage: str, num_ranks: int) -> Path:
    output = folder / f"stage-{stage}-of-{num_ranks}"
    output.mkdir(exist_ok=True)
    return output


def exercise(commands: LearnerCommands, folder: Path, stage: str) -> dict[str, Any]:
    number, _, kind = stage.partition("-")
    offloaded = kind == "offloaded"
    config = run_config(
        str(folder / "model"),
        grpo={"groups_per_step": 4},
        kl={"coef": 0.1},
        learner={
            "zero_stage": int(number),
            "offload_optimizer": offloaded,
            "offload_parameters": offloaded and number == "3",
            "lora": {
                "rank": 4 if kind in ("lora", "dropout", "nf4") else 0,
                "quantization": "nf4" if kind == "nf4" else "none",
                "dropout": 0.1 if kind == "dropout" else 0.0,
            },
            "freeze": FROZEN if kind == "frozen" else [],
            "compute_dtype": "bfloat16" if kind == "bfloat16" else "float32",
            "learning_rate": 1e-3,
            "pack_tokens": 4096 if kind == "bfloat16" else 48,
            "logits_chunk_tokens": 16,
        },
    )
    commands.configure(f"run-{stage}-{commands.process_group.size}", config)
    learner = commands.learner
    output = output_of(folder, stage, commands.process_group.size)
    record_gradient(learner, make_groups(group_size=5), output / "gradient.safetensors")
    assert learner.version == WeightVersion(0, 0)
    result: dict[str, Any] = {}
    if kind == "bfloat16":
        return result
    first = learner.step(make_batch("first", learner.version, groups=make_groups(seed=1)))
    result["first"] = first.metrics
    result["version"] = learner.version.policy_version
    # The steps that follow run beside what brings it to disk.
    saving = commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id="c1"))

    before = weights_of(learner)
    poisoned = [with_behavior(group, -1e30) for group in make_groups(seed=2)[:1]]
    refused = learner.step(make_batch("poisoned", learner.version, groups=[*poisoned, *make_groups(seed=3)]))
    result["refused"] = [refused.applied, refused.skip_reason, learner.version.policy_version]
    result["refused_changed_weights"] = not torch.equal(before, weights_of(learner))

    if kind == "frozen":
        result["frozen"] = frozen_part(learner, folder)
    second = make_groups(seed=4)
    result["second"] = learner.step(make_batch("second", learner.version, groups=second)).metrics
    saved = files_on_disk(commands, saving)
    result["checkpoint_bytes"] = sum(file.num_bytes for file in saved)
    request = restore_request("c1", saved)
    result["restored"] = str(commands.load_checkpoint(request))
    result["restored_changed_weights"] = not torch.equal(before, weights_of(learner))
    result["exports"] = export_both_ways(commands, folder, request)
    result["second_again"] = learner.step(make_batch("second", learner.version, groups=second)).metrics

    if kind == "frozen":
        return result  # What follows takes no notice of frozen parts.
    canary = weights_pb2.Canary(token_ids=int32_to_wire(make_groups()[0].prompt_token_ids))
    sent = commands.publish_weights(learner_pb2.PublishWeightsRequest(epoch=1, canary=canary), None)
    assert sent.canary_logprobs is not None
    result["canary"] = sent.canary_logprobs.tolist()
    result["export"] = str(commands.export_model(learner_pb2.ExportModelRequest()))
    result["reset"] = str(commands.load_checkpoint(learner_pb2.LoadCheckpointRequest(attempt=2)))
    result["changed"] = resume_with_changes(commands, config, request)
    return result


def export_both_ways(
    commands: LearnerCommands, folder: Path, request: learner_pb2.LoadCheckpointRequest
) -> list[dict[str, str]]:
    """Exports the policy of a checkpoint by the learner, and from its files; returns the digests of both on rank 0."""
    exported = commands.export_model(learner_pb2.ExportModelRequest(export_name="both"))
    if commands.process_group.rank:
        return []
    checkpoint = exported.parent.parent / "checkpoints" / request.checkpoint_id / "learner"
    files = [FileDigest(file.path, file.num_bytes, file.sha256) for file in request.files]
    whole, adapter = exported.with_name("from-checkpoint"), exported.with_name("adapter-from-checkpoint")
    config = commands.learner.config
    for target in (whole, adapter):
        target.mkdir()
        if target == whole or config.learner.lora.is_on:
            export_checkpoint(config, checkpoint, files, target, adapter_only=target == adapter)
    return [
        {name: sha256_of(target / name) for name in list_files(target)}
        for target in (exported, whole, exported / "adapter", adapter / "adapter")
    ]


def frozen_part(learner: Learner, folder: Path) -> dict[str, Any]:
    """Compares the weights after a step with those of the model's files; returns the names by what happened."""
    original = load_file(folder / "model" / "model.safetensors")
    changed = {
        name: not torch.equal(weight.cpu(), original[name])
        for name, weight in learner.engine.full_parameters(torch.float32)
    }
    named = dict(learner.lm.named_parameters())
    return {
        "changed": sorted(name for name, is_changed in changed.items() if is_changed),
        "unchanged": sorted(name for name, is_changed in changed.items() if not is_changed),
        "gradients": sorted(name for name, parameter in named.items() if parameter.requires_grad),
        "optimizer_elements": sum(
            value.numel()
            for state in learner.engine._engine.basic_optimizer.state.values()
            for key, value in state.items()
            if key == "exp_avg"
        ),
        "trained_elements": sum(math.prod(whole_shape(p)) for p in named.values() if p.requires_grad),
    }


def resume_with_changes(
    commands: LearnerCommands, config: RunConfig, request: learner_pb2.LoadCheckpointRequest
) -> dict[str, Any]:
    """Restores a checkpoint under another configuration, and takes a step; returns the settings in force."""
    learner_changes = {
        "compute_dtype": "bfloat16", "adam_beta1": 0.8, "adam_eps": 1e-6, "weight_decay": 0.25, "max_grad_norm": 0.125,
    }  # fmt: skip
    run_dir = commands._run_dir
    commands.configure("changed", changed_config(config, {"learner": learner_changes, "kl": {"coef": 0.3}}))
    commands._run_dir = run_dir  # The checkpoint is in the folder of the run that wrote it.
    commands.load_checkpoint(request)
    learner = commands.learner
    step = learner.step(make_batch("changed", learner.version, groups=make_groups(seed=4)))
    optimizer = learner.engine._engine.optimizer
    (group,) = optimizer.param_groups
    return {
        "applied": step.applied,
        "betas": group["betas"],
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
        "clip": optimizer.clip_grad if config.learner.zero_stage else learner.engine._max_grad_norm,
        "kl_coef": learner.kl_coef,
    }


def weights_of(learner: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten().clone() for _, tensor in learner.engine.full_parameters(torch.float32)])


if __name__ == "__main__":
    main()
