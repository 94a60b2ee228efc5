"""Log-probabilities and entropies of targets in one Triton kernel, and their gradient in another, for GPUs.

`logprobs.TokenLogprobs` is the same function in plain torch, against which these kernels are tested. The kernels read
the logits once forward and once backward. Plain torch reads them a dozen times.

Letters: C scored tokens, V size of the vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_V = 4096
"""The number of logits that a program reads at once."""
_NUM_WARPS = 8


class FusedTokenLogprobs(torch.autograd.Function):
    """Computes log softmax(logits / temperature) at the targets, and the entropy, as `logprobs.TokenLogprobs`."""

    @staticmethod
    def forward(
        ctx: Any, logits_CV: Tensor, targets_C: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        results_4C = torch.ops.shoal.token_logprobs(logits_CV, targets_C, temperature)
        _, _, logprobs_C, entropy_C = results_4C.unbind()
        ctx.save_for_backward(logits_CV, targets_C, results_4C)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_C)
        return logprobs_C, entropy_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_C, entropy_grad_C = grads
        logits_CV, targets_C, results_4C = ctx.saved_tensors
        torch.ops.shoal.token_logprobs_backward(
            logits_CV, targets_C, results_4C, grad_C.contiguous(),
            entropy_grad_C.contiguous() if ctx.entropy_gradient else None, ctx.temperature,
        )  # fmt: skip
        return logits_CV, None, None, None


@torch.library.custom_op("shoal::token_logprobs", mutates_args=())
def token_logprobs(logits_CV: Tensor, targets_C: Tensor, temperature: float) -> Tensor:
    """Returns the largest scaled logit, the log-sum-exp above it, the log-probability of the target, and the entropy,
    [4, C] float32. Logits are contiguous in V; targets are int64."""
    num_rows, vocabulary = logits_CV.shape
    results_4C = torch.empty(4, num_rows, device=logits_CV.device)
    if num_rows:
        _forward[(num_rows,)](
            logits_CV, targets_C, results_4C, temperature, num_rows, vocabulary, logits_CV.stride(0),
            BLOCK_V=_BLOCK_V, num_warps=_NUM_WARPS,
        )  # fmt: skip
    return results_4C


@token_logprobs.register_fake
def _(logits_CV: Tensor, targets_C: Tensor, temperature: float) -> Tensor:
    return logits_CV.new_empty((4, logits_CV.shape[0]), dtype=torch.float32)


@torch.library.custom_op("shoal::token_logprobs_backward", mutates_args={"logits_CV"})
def token_logprobs_backward(
    logits_CV: Tensor,
    targets_C: Tensor,
    results_4C: Tensor,
    grad_C: Tensor,
    entropy_grad_C: Tensor | None,
    temperature: float,
) -> None:
    """Overwrites the logits with their gradient. `results_4C` is what `token_logprobs` returned."""
    num_rows, vocabulary = logits_CV.shape
    if num_rows:
        _backward[(num_rows, triton.cdiv(vocabulary, _BLOCK_V))](
            logits_CV, targets_C, results_4C, grad_C, grad_C if entropy_grad_C is None else entropy_grad_C, temperature,
            num_rows, vocabulary, logits_CV.stride(0), entropy_grad_C is not None,
            BLOCK_V=_BLOCK_V, num_warps=_NUM_WARPS,
        )  # fmt: skip


@token_logprobs_backward.register_fake
def _(
    logits_CV: Tensor,
    targets_C: Tensor,
    results_4C: Tensor,
    grad_C: Tensor,
    entropy_grad_C: Tensor | None,
    temperature: float,
) -> None:
    return None


@triton.jit
def _forward(logits, targets, results, temperature, num_rows, vocabulary, stride, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    # Of the logits so far: the largest, the sum of exp(logit - largest), and the sum of their products.
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    product = tl.full((), 0.0, tl.float32)
    for start in range(0, vocabulary, BLOCK_V):
        places = start + tl.arange(0, BLOCK_V)
        is_logit = places < vocabulary
        scaled = tl.load(logits + places, mask=is_logit, other=float("-inf")).to(tl.float32) / temperature
        new_largest = tl.maximum(largest, tl.max(scaled, 0))
        shift = largest - new_largest
        decay = tl.exp(shift)
        product = tl.where(total > 0, decay * (product + total * shift), 0.0)
        total *= decay
        difference = scaled - new_largest
        exponential = tl.exp(difference)
        total += tl.sum(exponential, 0)
        product += tl.sum(tl.where(is_logit, exponential * difference, 0.0), 0)
        largest = new_largest
    log_total = tl.log(total)
    scaled_target = tl.load(logits + tl.load(targets + row)).to(tl.float32) / temperature
    tl.store(results + row, largest)
    tl.store(results + num_rows + row, log_total)
    tl.store(results + 2 * num_rows + row, scaled_target - largest - log_total)
    tl.store(results + 3 * num_rows + row, log_total - product / total)


@triton.jit
def _backward(
    logits, targets, results, grads, entropy_grads, temperature, num_rows, vocabulary, stride,
    HAS_ENTROPY_GRADIENT: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    places = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_logit = places < vocabulary
    scaled = tl.load(logits + places, mask=is_logit, other=0.0).to(tl.float32) / temperature
    log_probability = scaled - tl.load(results + row) - tl.load(results + num_rows + row)
    grad = tl.load(grads + row) / temperature
    # d logprob / d logit = ([target] - softmax) / temperature
    weight = -grad
    if HAS_ENTROPY_GRADIENT:
        # d entropy / d logit = -softmax (log softmax + entropy) / temperature
        entropy_grad = tl.load(entropy_grads + row) / temperature
        weight -= entropy_grad * (log_probability + tl.load(results + 3 * num_rows + row))
    gradient = tl.exp(log_probability) * weight
    gradient += tl.where(places == tl.load(targets + row), grad, 0.0)
    tl.store(logits + places, gradient.to(logits.dtype.element_ty), mask=is_logit)
