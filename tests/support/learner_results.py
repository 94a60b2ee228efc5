"""What learner ranks without a service write for a test, and how a test compares it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from services.learner.engine.deepspeed_settings import deepspeed
from services.learner.learner import Learner
from services.learner.loss.mini_batch import needs_survey, plan_mini_batches
from services.learner.storage.checkpoints import FileDigest
from shoal.config import RunConfig
from shoal.rollout import TrainGroup
from shoal.v1 import learner_pb2


def record_gradient(
    learner: Learner, groups: Sequence[TrainGroup], path: Path, config: RunConfig | None = None
) -> None:
    """Writes the whole gradient of groups, as one mini-batch by the configuration, and then drops it."""
    config = config or learner.config
    survey = learner.survey(groups, 0.9) if needs_survey(config) else None
    (mini_batch,) = plan_mini_batches(groups, survey, config)
    learner.accumulate_gradient(mini_batch, temperature=0.9)
    gradients = {
        name: deepspeed.utils.safe_get_full_grad(parameter).contiguous()
        for name, parameter in learner.lm.named_parameters()
        if parameter.requires_grad
    }
    if learner.process_group.rank == 0:
        save_file(gradients, path)
    learner.engine.apply(0.0, refuse=True)


def assert_same_gradient(path: Path, expected: Path, *, without: Sequence[str] = (), limit: float = 1e-5) -> None:
    """Asserts that a gradient, which lacks the parameters whose names begin so, is near another one."""
    whole, gradient = load_file(expected), load_file(path)
    assert gradient.keys() == {name for name in whole if not name.startswith(tuple(without))}
    one, other = (torch.cat([each[name].flatten() for name in gradient]) for each in (whole, gradient))
    assert float(one.norm()) > 0
    distance = float((other - one).norm() / one.norm())
    assert distance <= limit, f"{path}: relative L2 distance {distance:.2e}"


def is_measured(name: str) -> bool:
    """Whether a metric depends on the numbers alone, not on the machine or the packing."""
    return not name.startswith(("time/", "learner_tokens", "learner_mfu", "other/packed"))


def restore_request(checkpoint_id: str, files: Sequence[FileDigest]) -> learner_pb2.LoadCheckpointRequest:
    digests = [learner_pb2.FileDigest(**vars(file)) for file in files]
    return learner_pb2.LoadCheckpointRequest(checkpoint_id=checkpoint_id, files=digests, attempt=1)
