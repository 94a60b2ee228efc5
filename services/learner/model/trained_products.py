"""Matrix products with trained float32 weights, computed in bfloat16.

Under autocast each row casts every weight, and every gradient of a weight is cast back before it is added to the sum
over rows. Here a copy of each weight serves all rows of an optimizer step, and a product's gradient is added where the
sum is. On a GPU the product itself adds, in float32 (Megatron-LM calls this gradient accumulation fusion).

The experts of a layer are one parameter, and one grouped product multiplies the tokens of all experts. Autocast does
not know this product, so without the copies it would have the type of the weights, float32. Its gradient of the
weights, of all experts for a row, is bfloat16, and is added in float32.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.models.linear_layers import find_experts


class TrainedProducts:
    """Computes linear layers and experts with copies of their weights in the type of autocast.

    Only float32 weights under autocast have a copy; other products are those of torch. A copy is made at the first
    product. Within `kept` the copies serve all products, so weights must not change in it.
    """

    def __init__(self, *, row_multiple: int = 1) -> None:
        """The copies of linear layers have a multiple of this number of rows; those added are 0."""
        self.row_multiple = row_multiple
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
        if not _is_cast(weight):
            return functional.linear(states, weight, bias)
        product: Tensor = _Product.apply(states, weight, bias, self)
        return product

    def copy_of(self, weight: Tensor, dtype: torch.dtype, row_multiple: int = 1) -> Tensor:
        """Returns the copy of a weight, with further rows of zeros up to a multiple of rows."""
        copied = self._copies.get(weight)
        if copied is None:
            copied = weight.detach().to(dtype)
            if padding := -len(weight) % row_multiple:
                copied = functional.pad(copied, (0, 0) * (weight.dim() - 1) + (0, padding))
            if self._keeps:
                self._copies[weight] = copied
        return copied


class ProductLinear(nn.Linear):
    """A linear layer that `TrainedProducts` computes."""

    products: TrainedProducts

    def forward(self, input: Tensor) -> Tensor:
        return self.products.linear(input, self.weight, self.bias)


class _ProductExperts:
    """The experts of a layer, computed in the type of autocast. `products`, if any, has copies of their weights."""

    products: TrainedProducts | None
    _parameters: dict[str, Tensor | None]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        view = copy.copy(self)
        view._parameters = {
            name: None if weight is None else _in_product_type(weight, self.products)
            for name, weight in self._parameters.items()
        }
        computed: Tensor = super(_ProductExperts, view).forward(*args, **kwargs)  # type: ignore[misc]
        return computed


def compute_products(lm: nn.Module, products: TrainedProducts | None) -> None:
    """Lets `products` compute the plain linear layers and the experts of a model.

    If it is None, torch computes them: the experts too in the type of autocast, with a cast of float32 weights.
    """
    for module in lm.modules():
        if products is not None and type(module) is nn.Linear:
            module.__class__ = ProductLinear
            module.products = products
    for experts in find_experts(lm).values():
        kind = type(experts)
        experts.__class__ = type(kind.__name__, (_ProductExperts, kind), {"__module__": kind.__module__})
        experts.products = products


def _in_product_type(weight: Tensor, products: TrainedProducts | None) -> Tensor:
    if not _is_cast(weight):
        return weight
    if products is None:
        return weight.to(torch.get_autocast_dtype(weight.device.type))
    copied: Tensor = _Copied.apply(weight, products)
    return copied


def _is_cast(weight: Tensor) -> bool:
    """Returns whether a product with the weight needs a cast of the weight."""
    return weight.dtype == torch.float32 and bool(torch.is_autocast_enabled(weight.device.type))


class _Product(torch.autograd.Function):
    """The product of states [..., I] with a weight [O, I]. The rows of the result may be more than O values apart."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, products: TrainedProducts) -> Tensor:
        dtype = torch.get_autocast_dtype(states.device.type)
        states = states.to(dtype)
        copied, copied_bias = (
            None if tensor is None else products.copy_of(tensor, dtype, products.row_multiple)
            for tensor in (weight, bias)
        )
        result = functional.linear(states, copied, copied_bias)
        ctx.save_for_backward(states, copied)
        ctx.weight, ctx.bias, ctx.result_ptr = weight, bias, result.data_ptr()
        return result[..., : len(weight)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        states, copied = ctx.saved_tensors
        grad_NO = grads[0].reshape(-1, len(ctx.weight))
        states_NI = states.reshape(-1, states.shape[-1])
        if ctx.needs_input_grad[1]:
            _add_weight_gradient(ctx.weight, grad_NO, states_NI)
        if ctx.bias is not None and ctx.needs_input_grad[2]:
            _add(ctx.bias, grad_NO.sum(0, dtype=torch.float32 if grad_NO.is_cuda else None))
        grad_states = None
        if ctx.needs_input_grad[0]:
            if grad_NO.data_ptr() == ctx.result_ptr and grad_NO.stride() == (len(copied), 1):
                # The gradient has overwritten the result, so it has the same further columns of zeros.
                grad_NO = grad_NO.as_strided((len(grad_NO), len(copied)), (len(copied), 1))
            grad_states = grad_NO.mm(copied[: grad_NO.shape[1]]).view_as(states)
        # Autograd adds nothing more to the gradients of weights, but runs the hooks that follow.
        return grad_states, None, None, None


class _Copied(torch.autograd.Function):
    """The copy of a weight, for any product. Its gradients are added to those of the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, products: TrainedProducts) -> Tensor:
        ctx.weight = weight
        # A view: autograd must not mark the copy itself, which serves other rows too.
        return products.copy_of(weight, torch.get_autocast_dtype(weight.device.type)).view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        _add(ctx.weight, grads[0])
        return None, None


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
        parameter.grad = gradient.to(parameter.dtype, memory_format=torch.contiguous_format)
    else:
        parameter.grad.add_(gradient)
