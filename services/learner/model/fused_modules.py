"""Norms, rotary embeddings and gated activations in one kernel each, for GPUs.

transformers computes each of them in five to ten operations, and each of these reads and writes the whole row. The
kernels are those of Liger Kernel (arXiv:2410.10989). A module gets its kernel only if transformers' code of the module
computes the formula of the kernel, which is tried on a few random numbers. Any other module stays as it is.

A norm of float32 hidden states returns the type of the matrix products that follow, so the states are rounded once for
all of these products.
"""

import copy
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from services.learner.model.gpu_kernels import can_run_kernels

_log = logging.getLogger(__name__)
_ROTARY = "apply_rotary_pos_emb"
_WIDTH = 8
"""The size of the vectors on which a module's formula is tried."""


def fuse_modules(lm: nn.Module) -> list[str]:
    """Gives kernels to the modules of a language model that can use them. Returns the names of the changed code.

    Without Liger Kernel, nothing changes, and the log says so.
    """
    try:
        import liger_kernel as liger_kernel
    except ImportError:
        _log.warning("norms and activations take several kernels each: install the package liger-kernel")
        return []
    fused: dict[Any, type | None] = {}
    kinds = {type(module) for module in lm.modules()}
    with torch.random.fork_rng(devices=[]):
        for module in lm.modules():
            # Instances of a class may compute different formulas, such as a norm with and without a weight.
            formula = (type(module), *module._parameters, *_settings(module))
            if formula not in fused:
                fused[formula] = _fused_norm(module) or _fused_gated_mlp(module)
            if (fused_kind := fused[formula]) is not None:
                module.__class__ = fused_kind
        files = sorted({kind.__module__ for kind in kinds})
        rotating = [f"{file}.{_ROTARY}" for file in files if _fuse_rotary(sys.modules[file])]
    return sorted({kind.__name__ for kind in fused.values() if kind is not None}) + rotating


def _settings(module: nn.Module) -> list[tuple[str, object]]:
    """Lists the plain attributes of a module, which may change what the module computes."""
    return [(name, value) for name, value in vars(module).items() if isinstance(value, bool | int | float | str)]


def _fused_norm(module: nn.Module) -> type | None:
    """Returns the class of a root mean square norm with a kernel; None for any other module."""
    kind = type(module)
    eps_name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
    is_norm = kind.__name__.endswith("RMSNorm") and list(module._parameters) == ["weight"] and hasattr(module, eps_name)
    if not is_norm or not _takes_one_tensor(kind):
        return None
    trial = copy.copy(module)
    trial._parameters = {"weight": nn.Parameter(torch.randn(_WIDTH))}
    states = torch.randn(2, _WIDTH)
    for offset in (0.0, 1.0):
        weight = trial._parameters["weight"] + offset
        if _computes(trial, states, functional.rms_norm(states, (_WIDTH,), weight, getattr(module, eps_name))):
            return _with_forward(kind, _norm_forward(eps_name, offset))
    return None


def _norm_forward(eps_name: str, offset: float) -> Callable[[Any, Tensor], Tensor]:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def forward(self: Any, states: Tensor) -> Tensor:
        dtype = _product_dtype(states)
        # The cast makes a gradient that nobody else has, so the kernel may overwrite it.
        is_cast = states.dtype != dtype
        # "gemma": compute in float32, and round once to the type of the states.
        normed: Tensor = LigerRMSNormFunction.apply(
            states, self.weight, getattr(self, eps_name), offset, "gemma", is_cast
        )
        return normed.to(dtype) if is_cast else normed

    return forward


def _fused_gated_mlp(module: nn.Module) -> type | None:
    """Returns the class of a feed-forward layer whose activation, silu(gate) * up, has a kernel; None for others."""
    kind = type(module)
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(isinstance(getattr(module, name, None), nn.Module) for name in names) or not _takes_one_tensor(kind):
        return None
    trial = copy.copy(module)
    gate, up, down = (nn.Linear(_WIDTH, _WIDTH) for _ in names)
    trial._modules = module._modules | {"gate_proj": gate, "up_proj": up, "down_proj": down}
    states = torch.randn(2, _WIDTH)
    if not _computes(trial, states, down(functional.silu(gate(states)) * up(states))):
        return None
    return _with_forward(kind, _gated_mlp_forward)


def _gated_mlp_forward(self: Any, states: Tensor) -> Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    activated = LigerSiLUMulFunction.apply(self.gate_proj(states), self.up_proj(states))
    projected: Tensor = self.down_proj(activated)
    return projected


def _fuse_rotary(modeling: Any) -> bool:
    """Gives the function `apply_rotary_pos_emb` of one of transformers' files its kernel, for the whole process.

    Returns whether the function rotates halves of a head, as the kernel does.
    """
    plain = getattr(modeling, _ROTARY, None)
    if plain is None or hasattr(plain, "plain"):
        return plain is not None
    q, k = torch.randn(1, 2, 3, _WIDTH), torch.randn(1, 1, 3, _WIDTH)
    cos, sin = (torch.randn(1, 3, _WIDTH // 2).repeat(1, 1, 2) for _ in range(2))

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]

    def both(states: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat(plain(*states, cos, sin), dim=1)

    if not _computes(both, (q, k), torch.cat((rotated(q), rotated(k)), dim=1)):
        return False

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Rotates queries [1, H, R, D] and keys [1, K, R, D], whose storage may change, in the type of the products."""
        from liger_kernel.ops.rope import LigerRopeFunction

        if not can_run_kernels(q.device) or rest or options or cos.shape != (1, q.shape[2], q.shape[3]):
            turned: tuple[Tensor, Tensor] = plain(q, k, cos, sin, *rest, **options)
            return turned
        turned = LigerRopeFunction.apply(q.to(_product_dtype(q)), k.to(_product_dtype(k)), cos, sin)
        return turned

    rotate.plain = plain  # type: ignore[attr-defined]
    setattr(modeling, _ROTARY, rotate)
    return True


def _with_forward(kind: type, forward: Callable[[Any, Tensor], Tensor]) -> type:
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _takes_one_tensor(kind: type[nn.Module]) -> bool:
    return len(inspect.signature(kind.forward).parameters) == 2


def _computes(function: Callable[[Any], Tensor], given: Any, expected: Tensor) -> bool:
    """Returns whether a function returns the expected values."""
    try:
        with torch.no_grad():
            return bool(torch.allclose(function(given), expected, rtol=1e-4, atol=1e-5))
    except Exception as error:
        # The code of another formula may want other arguments, attributes or sizes.
        _log.debug("%s does not take %s: %s", function, given, error)
        return False


def _product_dtype(states: Tensor) -> torch.dtype:
    """Returns the type in which autocast computes matrix products; the type of the states without autocast."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
