"""DeepSpeed, behind the few verbs that the learner's step needs.

How the numbers are kept: parameters, gradients and optimizer state are float32 at every ZeRO stage, because at the
learning rates of reinforcement learning an update is smaller than a bfloat16 weight can show. bfloat16 is what the
forward and backward passes compute in (autocast, inside the policy). Up to stage 2 DeepSpeed therefore sees a plain
float32 model. At stage 3 parameters are gathered for every layer, and DeepSpeed's own `torch_autocast` has them
gathered in bfloat16, for half the traffic and no second copy in the backward pass.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.batch import PackedRow
from services.learner.deepspeed_settings import deepspeed, policy_settings, release, start_deepspeed
from services.learner.model import Policy
from services.learner.optimizer import make_optimizer
from shoal.config.learner import LearnerConfig

_GATHER_BYTES = 256 << 20
"""Float32 bytes of sharded parameters that are gathered at once to be read."""
_TAG = "state"


@dataclass(frozen=True)
class StepOutcome:
    """What became of one optimizer step."""

    applied: bool
    """False when the gradient, or the loss, was not finite; then nothing has changed."""
    grad_norm: float
    """Global L2 norm before clipping; not finite if the gradient was not."""


class DeepSpeedEngine:
    """A policy with its optimizer, sharded over the ranks as the ZeRO stage says.

    Every method is called on all ranks, in the same order: each may hold collectives.
    """

    def __init__(self, policy: Policy, config: LearnerConfig, *, device: torch.device) -> None:
        start_deepspeed(device)
        self.device = device
        self._stage = config.zero_stage
        self._is_offloaded = config.offload_optimizer
        self._max_grad_norm = config.max_grad_norm
        self._parameters = list(policy.lm.named_parameters())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters}
        self._engine, *_ = deepspeed.initialize(
            model=policy.train(),
            optimizer=make_optimizer(policy, config),
            config=policy_settings(config),
            dist_init_required=False,
        )
        self._storage = _Storage()
        self._engine.checkpoint_engine = self._storage
        # Rank 0 alone would copy DeepSpeed's conversion scripts beside the files: on a full disk that fails where the
        # other ranks wait for it.
        self._engine._copy_recovery_script = lambda save_path: None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, by the name that transformers gives it; tied parameters once."""
        return self._shapes

    def forward(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        """As `Policy.forward`."""
        scored: tuple[Tensor, Tensor] = self._engine(row, temperature)
        return scored

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Adds the gradient of a loss. `is_last` says that this is the last one before `step`.

        DeepSpeed then averages the gradients over the ranks.
        """
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float, *, refuse: bool) -> StepOutcome:
        """Clips the accumulated gradient and applies it, unless it is not finite, or is to be refused.

        Either way the gradient is gone afterwards. All ranks come to the same decision, given the same `refuse`.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        return self._step_replicated(refuse) if self._stage == 0 else self._step_sharded(refuse)

    def _step_replicated(self, refuse: bool) -> StepOutcome:
        """Stage 0: DeepSpeed has averaged the gradients, and has no check of its own."""
        parameters = [parameter for _, parameter in self._parameters]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if refuse or not torch.isfinite(norm):
            self._engine.zero_grad()
            return StepOutcome(applied=False, grad_norm=float(norm))
        if self._max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        self._engine.step()
        return StepOutcome(applied=True, grad_norm=float(norm))

    def _step_sharded(self, refuse: bool) -> StepOutcome:
        """Stages 1 to 3: DeepSpeed clips, and drops a gradient whose global norm is not finite."""
        if refuse:
            self._poison()
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return StepOutcome(applied=bool(self._engine.was_step_applied()), grad_norm=float(norm))

    def _poison(self) -> None:
        """One value that is not finite, and DeepSpeed clears all that it has accumulated, on every rank."""
        if self._is_offloaded:
            # Gradients are with the optimizer on the host then, and their norms are what is looked at.
            norms = self._engine.optimizer.norm_for_param_grads
            norms.update({key: torch.tensor(torch.nan) for key in norms})
            return
        for gradients in self._engine.optimizer.averaged_gradients.values():
            for gradient in gradients or ():
                if gradient is not None:
                    gradient.fill_(torch.nan)

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Each parameter whole, by name, in a fixed order, on this rank's device; must be run to its end.

        In float32, except that sharded ones may come in bfloat16 if that is the `dtype` wanted: the float32 value
        rounded once, as the caller would. A tensor may be the parameter itself: do not write to it.
        """
        if self._stage < 3:
            yield from ((name, parameter.data) for name, parameter in self._parameters)
        elif dtype == torch.bfloat16:
            for names, parameters in self._gather_buckets():
                with deepspeed.zero.GatheredParameters(parameters):
                    whole = [parameter.data.to(dtype, copy=True) for parameter in parameters]
                yield from zip(names, whole, strict=True)
        else:
            # What is gathered for the forward pass may be rounded to bfloat16; the masters are not.
            for name, parameter in self._parameters:
                yield name, deepspeed.utils.safe_get_full_fp32_param(parameter)

    def _gather_buckets(self) -> Iterator[tuple[list[str], list[Tensor]]]:
        names: list[str] = []
        parameters: list[Tensor] = []
        size = 0
        for name, parameter in self._parameters:
            num_bytes = 4 * parameter.ds_numel
            if names and size + num_bytes > _GATHER_BYTES:
                yield names, parameters
                names, parameters, size = [], [], 0
            names.append(name)
            parameters.append(parameter)
            size += num_bytes
        if names:
            yield names, parameters

    def save(self, folder: Path) -> OSError | None:
        """Writes this rank's shards of parameters and optimizer below a folder that exists.

        A failure to write is returned, not raised, so that no rank leaves the others waiting.
        """
        self._storage.error = None
        try:
            (folder / _TAG).mkdir(exist_ok=True)
        except OSError as error:
            self._storage.error = error
        self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)
        return self._storage.error

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote, on the same number of ranks and with the same ZeRO stage."""
        self._engine.load_checkpoint(str(folder), tag=_TAG)

    def close(self) -> None:
        """Gives the memory back."""
        release(self._engine, [parameter for _, parameter in self._parameters])
        # DeepSpeed keeps the group of second copies for the process: another configuration would meet it.
        deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None


def full_gradients(engine: DeepSpeedEngine) -> dict[str, Tensor]:
    """The whole gradient of each parameter, after the last `backward` and before `step`. Called on all ranks."""
    return {name: deepspeed.utils.safe_get_full_grad(parameter) for name, parameter in engine._parameters}


class _Storage(deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine.TorchCheckpointEngine):
    """Writes files so that they last, and remembers the first that could not be written."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None

    def save(self, state_dict: Any, path: str) -> None:
        if self.error is not None:
            return
        try:
            with open(path, "wb") as file:
                torch.save(state_dict, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.error = error
        except RuntimeError as error:
            # Torch's writer fails in words of its own after the file below it has.
            self.error = error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error))
