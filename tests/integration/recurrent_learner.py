"""One of two ranks of a learner of recurrent layers and experts in bfloat16 at ZeRO 3.

Started by test_recurrent_learner.py.
Usage: main() with the argument FOLDER, by tests/support/ranks.py. Writes FOLDER/<rank>.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from services.learner.commands import LearnerCommands
from services.learner.engine.deepspeed_settings import deepspeed
from services.learner.model.mixers import find_mixers
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from shoal.models.linear_layers import find_experts
from shoal.v1 import learner_pb2
from tests.support.configs import run_config
from tests.support.train_batches import make_batch, make_groups


def main() -> None:
    limit_threads(2)
    folder = Path(sys.argv[1])
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    settings: dict[str, Any] = {"zero_stage": 3, "compute_dtype": "bfloat16", "learning_rate": 1e-3}
    options: dict[str, Any] = {"weights": {"dtype": "bfloat16"}, "kl": {"coef": 0.1}}
    commands.configure("run", run_config(str(folder / "model"), learner=settings, **options))
    learner, computed = commands.learner, {}

    def record(mixer: Any, *_: Any) -> None:
        computed["A_log"] = mixer.A_log.detach().clone()

    mixer = find_mixers(learner.lm)[0]
    hook = mixer.register_forward_pre_hook(record)
    step = learner.step(make_batch("first", learner.version, groups=make_groups(seed=1)))
    hook.remove()

    def record_rounded(experts: Any, *_: Any) -> None:
        weights = {name: weight.detach() for name, weight in experts.named_parameters()}
        computed["rounded"] = {name: torch.equal(weight, weight.bfloat16().float()) for name, weight in weights.items()}

    # The first step computed with the files' values, which are in bfloat16.
    experts = next(iter(find_experts(learner.lm).values()))
    hook = experts.register_forward_pre_hook(record_rounded)
    learner.step(make_batch("second", learner.version, groups=make_groups(seed=1)))
    hook.remove()
    masters = {
        name: deepspeed.utils.safe_get_full_fp32_param(parameter)
        for name, parameter in learner.lm.named_parameters()
        if parameter.requires_grad
    }
    whole = {name: tensor.clone() for name, tensor in learner.engine.full_parameters(torch.bfloat16)}
    exported = commands.export_model(learner_pb2.ExportModelRequest(export_name="e"))
    result = {
        "applied": step.applied,
        "metrics": step.metrics,
        "computed": str(computed["A_log"].dtype),
        "experts_rounded": computed["rounded"],
        "manifest": {spec.name: spec.dtype for spec in commands.manifest.tensors},
        "whole": {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in whole.items()},
        "rounded": [n for n, t in whole.items() if t.dtype == torch.float32 and not torch.equal(t, masters[n])],
        "exported": str(exported),
        "A_log": {name: master.tolist() for name, master in masters.items() if name.endswith("A_log")},
    }
    learner.engine.close()
    result["adapters"] = with_adapters(commands, folder, settings, options)
    (folder / f"{commands.process_group.rank}.json").write_text(json.dumps(result))
    commands.learner.engine.close()
    commands.process_group.leave()


def with_adapters(
    commands: LearnerCommands, folder: Path, settings: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Trains adapters on the frozen model; returns the values of its decays."""
    lora = {"rank": 4, "target_modules": ["in_proj_qkv", "out_proj", "q_proj"]}
    commands.configure("adapters", run_config(str(folder / "model"), learner=settings | {"lora": lora}, **options))
    learner = commands.learner
    step = learner.step(make_batch("first", learner.version, groups=make_groups(seed=1)))
    whole = dict(learner.engine.full_parameters(torch.bfloat16))
    return {
        "applied": step.applied,
        "A_log": {name: tensor.tolist() for name, tensor in whole.items() if name.endswith("A_log")},
    }
