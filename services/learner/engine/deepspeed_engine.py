"""The training engine: DeepSpeed, with only the methods that the learner's step needs.

Trained parameters, gradients and optimizer state are float32 at every ZeRO stage, because at the learning rates of
reinforcement learning an update is smaller than the resolution of a bfloat16 weight. Only the forward and backward
passes compute in bfloat16 (autocast, inside the policy). So up to stage 2 DeepSpeed sees a plain float32 model. At
stage 3 parameters are gathered for every layer, and DeepSpeed's own `torch_autocast` gathers them in bfloat16, which
halves the traffic and saves a second copy in the backward pass. Ranks add gradients in float32.

Frozen parameters have no gradient, no optimizer state and no place in a checkpoint.
"""

import errno
import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.learner.engine.deepspeed_settings import (
    deepspeed,
    gather_in_bfloat16,
    policy_settings,
    release,
    start_deepspeed,
    sum_in_float32,
)
from services.learner.engine.layer_gathering import gather_by_layer
from services.learner.engine.optimizer import make_optimizer
from services.learner.engine.whole_weights import adapter_shapes, whole_adapters, whole_weights
from services.learner.model.packing import PackedRow
from services.learner.model.policy import Policy
from services.learner.model.transfers import RowQueue
from services.learner.model.weights import list_weights, whole_shape
from shoal.config.tables.learner import LearnerConfig
from shoal.full_memory import is_out_of_memory
from shoal.models.file_names import FileNames
from shoal.models.linear_layers import find_experts

_TAG = "state"
_OF_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
"""The name of a parameter of a single expert, in a model whose experts are modules of their own."""
_SETTINGS = ("betas", "eps", "weight_decay")
"""Settings of AdamW, without the learning rate, which every step sets."""


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one optimizer step."""

    applied: bool
    """False when the gradient or the loss was not finite. In this case nothing was changed."""
    grad_norm: float
    """The global L2 norm before clipping; not finite if the gradient was not finite."""


class DeepSpeedEngine:
    """A policy with its optimizer, sharded over the ranks according to the ZeRO stage.

    Training has two halves: `forward` and `accumulate` for each row, then `apply` for the sum of the rows' gradients.

    Call every method on all ranks, in the same order: each may contain collectives.
    """

    def __init__(self, policy: Policy, config: LearnerConfig, *, device: torch.device) -> None:
        start_deepspeed(device)
        self.device = device
        assert config.zero_stage is not None, "the caller knows the number of ranks"
        self.zero_stage = config.zero_stage
        self.compute_dtype = config.compute_dtype
        self._is_offloaded = config.offload_optimizer
        self._max_grad_norm = config.max_grad_norm
        self._weights = list_weights(policy.lm)
        self.file_names = FileNames(policy.lm)
        self._products = policy.products
        self._parameters = list(policy.lm.parameters())
        self._trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._has_frozen = len(self._trained) < len(self._parameters)
        if self._has_frozen:
            policy.register_state_dict_post_hook(_drop_frozen)
        has_optional = any(_OF_ONE_EXPERT.search(name) for name, _ in policy.lm.named_parameters())
        settings = policy_settings(config, num_trained=self.num_trained, trains_every_parameter=not has_optional)
        if self.zero_stage == 3:
            settings["zero_optimization"] |= gather_by_layer(policy.lm)
            if config.compute_dtype == "bfloat16":
                gather_in_bfloat16(find_experts(policy.lm).values())
        self._engine, *_ = deepspeed.initialize(
            model=policy.train(),
            optimizer=make_optimizer(policy, config),
            config=settings,
            dist_init_required=False,
        )
        if self.zero_stage == 3 and config.compute_dtype == "bfloat16":
            sum_in_float32(self._engine.optimizer)
        self._queue = RowQueue(device)
        self._storage = _Storage()
        self._engine.checkpoint_engine = self._storage
        # On rank 0 alone DeepSpeed copies a script, which would fail on a full disk while the other ranks wait.
        self._engine._copy_recovery_script = lambda save_path: None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, by its name in transformers; tied parameters appear once."""
        return {weight.name: weight.shape for weight in self._weights}

    @property
    def float32_shapes(self) -> dict[str, tuple[int, ...]]:
        """The `shapes` of the parameters that stay float32 in a publish or an export of lower precision."""
        return {weight.name: weight.shape for weight in self._weights if weight.is_float32}

    @property
    def num_trained(self) -> int:
        """Number of trained values, on all ranks together."""
        return sum(math.prod(whole_shape(parameter)) for parameter in self._trained)

    def set_entropy_gradient(self, is_on: bool) -> None:
        """Sets whether the entropies that `forward` returns have a gradient."""
        self._engine.module.scorer.entropy_gradient = is_on

    def forward(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        """Runs `Policy.forward`."""
        scored: tuple[Tensor, Tensor] = self._engine(row, temperature)
        return scored

    def kept_copies(self) -> AbstractContextManager[Any]:
        """Returns a context in which copies of the weights in `compute_dtype` serve all rows. Do not change weights in
        it."""
        return nullcontext() if self._products is None else self._products.kept()

    def accumulate(self, loss: Tensor, *, is_last: bool) -> None:
        """Adds the gradient of a loss to the accumulated gradient. `is_last` marks the last loss before `apply`.

        DeepSpeed averages the gradients over the ranks in float32: at stages 0 and 1 with the last loss, at stages 2
        and 3 with each loss, because ranks keep only shards there. From stage 1 on this happens during the pass. A GPU
        may still compute the pass when this method returns, and the pass before it.
        """
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss, scale_wrt_gas=False)
        self._queue.add_row()

    def apply(self, learning_rate: float, *, refuse: bool) -> StepOutcome:
        """Clips the accumulated gradient and takes an optimizer step, unless the gradient is not finite or `refuse` is
        True.

        A gradient that is not applied is dropped. All ranks come to the same decision if they pass the same `refuse`.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        return self._apply_replicated(refuse) if self.zero_stage == 0 else self._apply_sharded(refuse)

    def _apply_replicated(self, refuse: bool) -> StepOutcome:
        """Takes a step at stage 0, where DeepSpeed averages the gradients but does not check them."""
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if refuse or not torch.isfinite(norm):
            self._engine.zero_grad()
            return StepOutcome(applied=False, grad_norm=float(norm))
        if self._max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self._trained, self._max_grad_norm, norm)
        self._engine.step()
        return StepOutcome(applied=True, grad_norm=float(norm))

    def _apply_sharded(self, refuse: bool) -> StepOutcome:
        """Takes a step at stages 1 to 3, where DeepSpeed clips, and drops a gradient whose norm is not finite."""
        if refuse:
            self._poison()
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return StepOutcome(applied=bool(self._engine.was_step_applied()), grad_norm=float(norm))

    def _poison(self) -> None:
        """Makes the gradient not finite, so that DeepSpeed clears the gradient on every rank."""
        if self._is_offloaded:
            # The gradients are with the optimizer on the host, and DeepSpeed checks only their norms.
            norms = self._engine.optimizer.norm_for_param_grads
            norms.update({key: torch.tensor(torch.nan) for key in norms})
            return
        for gradients in self._engine.optimizer.averaged_gradients.values():
            for gradient in gradients or ():
                if gradient is not None:
                    gradient.fill_(torch.nan)

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yields each whole parameter by name, like `whole_weights`, in the order of `shapes`. Exhaust the iterator."""
        return whole_weights(self._weights, dtype, is_sharded=self.zero_stage == 3)

    @property
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each matrix of an adapter, by peft's name; empty if the model itself is trained."""
        return adapter_shapes(self._weights)

    def adapter_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the matrices of each adapter, as `whole_adapters` does, in the order of `adapter_shapes`."""
        return whole_adapters(self._weights, is_sharded=self.zero_stage == 3)

    def save(self, folder: Path) -> OSError | None:
        """Writes this rank's shards of parameters and optimizer below an existing folder, without syncing them to disk.

        Returns the error of a failed write instead of raising it, so that all ranks go on. See also `saved_files`.
        """
        self._storage.begin()
        try:
            (folder / _TAG).mkdir(exist_ok=True)
        except OSError as error:
            self._storage.error = error
        self._engine.save_checkpoint(
            str(folder), tag=_TAG, save_latest=False, exclude_frozen_parameters=self._has_frozen
        )
        return self._storage.error

    @property
    def saved_files(self) -> list[Path]:
        """The files that this rank wrote in the last `save`."""
        return self._storage.files

    def load(self, folder: Path, *, is_universal: bool = False) -> None:
        """Restores the state that `save` wrote, with the same ZeRO stage.

        From stage 1 on the number of ranks must be unchanged, unless the state is in DeepSpeed's universal form. The
        optimizer's settings come from the configuration, although DeepSpeed would restore the saved settings.
        """
        settings = [{name: group[name] for name in _SETTINGS} for group in self._engine.optimizer.param_groups]
        if self.zero_stage == 3:
            # The optimizer adopts the tensors that are read. Without this, old and new tensors would both be in memory.
            self._engine.basic_optimizer.state.clear()
        self._engine._config.load_universal_checkpoint = is_universal
        self._engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=not self._has_frozen)
        if is_universal:
            self._separate_steps()
        for group, own in zip(self._engine.optimizer.param_groups, settings, strict=True):
            group.update(own)
        if self.zero_stage:
            self._engine.optimizer.clip_grad = self._max_grad_norm

    def _separate_steps(self) -> None:
        """Gives each state of AdamW its own step count, on the device where AdamW expects it.

        At stage 3 DeepSpeed reads one tensor from a universal checkpoint, on the host, and all states share this
        tensor. Every group would advance it at every step, and the bias correction of all groups would be wrong.
        """
        optimizer = self._engine.basic_optimizer
        for parameter, state in optimizer.state.items():
            device = parameter.device if optimizer.defaults["fused"] else "cpu"
            state["step"] = state["step"].to(device, copy=True)

    def close(self) -> None:
        """Releases the memory."""
        release(self._engine, self._parameters)
        # DeepSpeed keeps the group of second copies (hpZ): another configuration would reuse it.
        deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None


def _drop_frozen(policy: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Removes all but the trained parameters from a state to save: all others are in the model's files.

    DeepSpeed itself would keep further names of tied parameters.
    """
    trained = {name for name, parameter in policy.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    for name in [name for name in state if name.removeprefix(prefix) not in trained]:
        del state[name]


class _Storage(deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine.TorchCheckpointEngine):
    """Writes files and remembers their paths. Keeps the first error instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()
        # A checkpoint's digests cover each byte. Torch's checksums are never checked, and double the time.
        torch.serialization.set_crc32_options(False)

    def begin(self) -> None:
        """Forgets the paths of earlier files."""
        self.error: OSError | None = None
        self.files: list[Path] = []

    def save(self, state_dict: Any, path: str) -> None:
        if self.error is not None:
            return
        try:
            with open(path, "wb") as file:
                torch.save(state_dict, file)
            self.files.append(Path(path))
        except OSError as error:
            self.error = error
        except RuntimeError as error:
            # When a write fails, torch's writer raises an error of its own; the OSError is its context.
            if isinstance(error.__context__, OSError):
                self.error = error.__context__
            else:
                self.error = OSError(errno.ENOMEM if is_out_of_memory(error) else None, str(error))
