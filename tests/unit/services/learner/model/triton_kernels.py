"""Computes with the Triton kernels and the plain functions, and prints how far they differ, as JSON.

    TRITON_INTERPRET=1 python -m tests.unit.services.learner.model.triton_kernels compare
    python -m tests.unit.services.learner.model.triton_kernels compile

The first interprets the kernels on a CPU. The second compiles them for GPUs, which needs none.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor

from services.learner.model import fused_logprobs
from services.learner.model.logprobs import TokenLogprobs

CASES = {
    "one block, not full": (7, 1000, torch.float32, 1.0, False),
    "exactly one block": (3, 4096, torch.float32, 1.3, True),
    "three blocks in bfloat16": (5, 9001, torch.bfloat16, 0.7, True),
    "large logits": (4, 5000, torch.float32, 0.05, True),
    "no rows": (0, 5000, torch.bfloat16, 1.0, True),
}
"""Rows, size of the vocabulary, type of the logits, temperature, and whether the entropy has a gradient, by name."""
ARCHITECTURES = (80, 90, 100)
"""Compute capabilities of the GPUs for which the kernels are compiled: A100, H100 and H200, B200."""


def compare() -> dict[str, dict[str, float]]:
    """Returns the largest differences of the log-probabilities, the entropies and the gradients, by case. The
    gradients' difference is a share of the largest gradient."""
    differences = {}
    for name, (num_rows, vocabulary, dtype, temperature, entropy_gradient) in CASES.items():
        random = torch.Generator().manual_seed(vocabulary)
        logits_CV = (torch.randn(num_rows, vocabulary, generator=random) * 3).to(dtype)
        arguments = (torch.randint(vocabulary, (num_rows,), generator=random), temperature, entropy_gradient)
        gradients_2C = torch.randn(2, num_rows, generator=random)
        fused = run(fused_logprobs.FusedTokenLogprobs, logits_CV, arguments, gradients_2C)
        plain = run(TokenLogprobs, logits_CV, arguments, gradients_2C)
        errors = [largest(ours - theirs) for ours, theirs in zip(fused, plain, strict=True)]
        errors[2] /= largest(plain[2]) or 1.0
        differences[name] = dict(zip(("logprobs", "entropy", "gradient"), errors, strict=True))
    return differences


def run(function: Any, logits_CV: Tensor, arguments: tuple[Any, ...], gradients_2C: Tensor) -> list[Tensor]:
    """Returns log-probabilities, entropies, and the gradient of the logits for these gradients of both."""
    leaf = logits_CV.clone().requires_grad_()
    # The function overwrites its input, which must not be a leaf.
    results = function.apply(leaf * 1, *arguments)
    differentiable = [result for result in results if result.requires_grad]
    torch.autograd.backward(differentiable, list(gradients_2C[: len(differentiable)]))
    assert leaf.grad is not None
    return [*(result.detach() for result in results), leaf.grad]


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def compile_for_gpus() -> dict[str, int]:
    """Returns the size of each kernel's machine code, in bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sizes = {"temperature": "fp32", "num_rows": "i32", "vocabulary": "i32", "stride": "i32", "BLOCK_V": "constexpr"}
    forward = {"targets": "*i64", "results": "*fp32", **sizes}
    gradient = {"grads": "*fp32", "entropy_grads": "*fp32"}
    backward = {"targets": "*i64", "results": "*fp32", **gradient, **sizes, "HAS_ENTROPY_GRADIENT": "constexpr"}
    kernels = [(fused_logprobs._forward, forward, {"BLOCK_V": 4096})]
    for is_on in (False, True):
        kernels.append((fused_logprobs._backward, backward, {"BLOCK_V": 4096, "HAS_ENTROPY_GRADIENT": is_on}))
    code = {}
    for architecture in ARCHITECTURES:
        for kernel, signature, constants in kernels:
            for dtype in ("bf16", "fp32"):
                arguments = {name: {"logits": f"*{dtype}", **signature}[name] for name in kernel.arg_names}
                source = ASTSource(fn=kernel, signature=arguments, constexprs=constants)
                compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 8})
                code[f"{kernel.__name__} {constants} {dtype} sm_{architecture}"] = len(compiled.asm["cubin"])
    return code


def main() -> None:
    print(json.dumps(compare() if sys.argv[1] == "compare" else compile_for_gpus()))


if __name__ == "__main__":
    main()
