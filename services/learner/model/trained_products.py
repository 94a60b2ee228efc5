"""Matrix products with trained float32 weights, computed in bfloat16.

Under autocast each row casts every weight, and every gradient of a weight is cast back before it is added to the sum
over rows. Here a copy of each weight serves all rows of an optimizer step, and a product's gradient is added where the
sum is. On a GPU the product itself adds, in float32 (Megatron-LM calls this gradient accumulation fusion).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class TrainedProducts:
    """Computes linear layers with copies of their weights in the type of autocast.

    Only float32 weights under autocast have a copy; other products are those of torch. A copy is made at the first
    product. Within `kept` the copies serve all products, so weights must not change in it.
    """

    def __init__(self, *, row_multiple: int = 1) -> None:
        """Copies have a multiple of this number of rows; those added are 0."""
        self._row_multiple = row_multiple
        self._keeps = False
        self._copies: dict[Tensor, Tensor] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the copies until the end of the context."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._copies.clear()

    def linear(self, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Computes `torch.nn.functional.linear`: states [..., I] with a weight [O, I] and a bias [O], as [..., O]."""
        if weight.dtype != torch.float32 or not torch.is_autocast_enabled(states.device.type):
            return functional.linear(states, weight, bias)
        product: Tensor = _Product.apply(states, weight, bias, self)
        return product

    def copy_of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the copy of a weight [O, I] or a bias [O], with further rows of zeros."""
        copy = self._copies.get(weight)
        if copy is None:
            copy = weight.detach().to(dtype)
            if padding := -len(weight) % self._row_multiple:
                copy = functional.pad(copy, (0, 0) * (weight.dim() - 1) + (0, padding))
            if self._keeps:
                self._copies[weight] = copy
        return copy


class ProductLinear(nn.Linear):
    """A linear layer that `TrainedProducts` computes."""

    products: TrainedProducts

    def forward(self, input: Tensor) -> Tensor:
        return self.products.linear(input, self.weight, self.bias)


def compute_products(lm: nn.Module, products: TrainedProducts) -> None:
    """Lets `products` compute the plain linear layers of a model."""
    for module in lm.modules():
        if type(module) is nn.Linear:
            module.__class__ = ProductLinear
            module.products = products


class _Product(torch.autograd.Function):
    """The product of states [..., I] with a weight [O, I]. The rows of the result may be more than O values apart."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, products: TrainedProducts) -> Tensor:
        dtype = torch.get_autocast_dtype(states.device.type)
        states = states.to(dtype)
        copy = products.copy_of(weight, dtype)
        result = functional.linear(states, copy, None if bias is None else products.copy_of(bias, dtype))
        ctx.save_for_backward(states, copy)
        ctx.weight, ctx.bias, ctx.result_ptr = weight, bias, result.data_ptr()
        return result[..., : len(weight)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        states, copy = ctx.saved_tensors
        grad_NO = grads[0].reshape(-1, len(ctx.weight))
        states_NI = states.reshape(-1, states.shape[-1])
        if ctx.needs_input_grad[1]:
            _add_weight_gradient(ctx.weight, grad_NO, states_NI)
        if ctx.bias is not None and ctx.needs_input_grad[2]:
            _add(ctx.bias, grad_NO.sum(0, dtype=torch.float32 if grad_NO.is_cuda else None))
        grad_states = None
        if ctx.needs_input_grad[0]:
            if grad_NO.data_ptr() == ctx.result_ptr and grad_NO.stride() == (len(copy), 1):
                # The gradient has overwritten the result, so it has the same further columns of zeros.
                grad_NO = grad_NO.as_strided((len(grad_NO), len(copy)), (len(copy), 1))
            grad_states = grad_NO.mm(copy[: grad_NO.shape[1]]).view_as(states)
        # Autograd adds nothing more to the gradients of weights, but runs the hooks that follow.
        return grad_states, None, None, None


def _add_weight_gradient(weight: Tensor, grad_NO: Tensor, states_NI: Tensor) -> None:
    if not grad_NO.is_cuda:
        # A product on a CPU has the type of its factors.
        _add(weight, grad_NO.t().mm(states_NI))
    elif weight.grad is None:
        weight.grad = torch.mm(grad_NO.t(), states_NI, out_dtype=torch.float32)
    else:
        torch.addmm(weight.grad, grad_NO.t(), states_NI, out_dtype=torch.float32, out=weight.grad)


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)
