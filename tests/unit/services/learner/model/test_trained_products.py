"""Linear layers with kept copies of their weights, against the same layers under autocast."""

import pytest
import torch
from torch import Tensor, nn

from services.learner.model.logprobs import TokenScorer
from services.learner.model.trained_products import TrainedProducts, compute_products
from tests.support.operations import Operations

OUT, IN = 10, 16


def layer_of(*, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(IN, OUT, bias=bias)


def rows() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(1, length, IN, requires_grad=True) for length in (5, 7, 3)]


def trained(layer: nn.Linear, states: list[Tensor]) -> list[Tensor]:
    """Returns the outputs of rows, and the gradients of their states and of the layer."""
    outputs = []
    for row in states:
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(layer(row))
        outputs[-1].float().square().sum().backward()
    gradients = [tensor.grad for tensor in (*states, *layer.parameters())]
    return [*outputs, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("row_multiple", [1, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_autocast(bias: bool, row_multiple: int) -> None:
    expected = trained(layer_of(bias=bias), rows())
    layer, products = layer_of(bias=bias), TrainedProducts(row_multiple=row_multiple)
    compute_products(layer, products)
    with products.kept():
        found = trained(layer, rows())
    assert len(found) == len(expected) == 6 + 1 + bias
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("row_multiple", [1, 8])
def test_a_head_whose_logits_become_their_gradient_trains_as_under_autocast(row_multiple: int) -> None:
    found: list[list[Tensor]] = []
    for products in (None, TrainedProducts(row_multiple=row_multiple)):
        (hidden, *_), head = rows(), layer_of(bias=False)
        scorer = TokenScorer(head, chunk_tokens=100, products=products)
        with torch.autocast("cpu", torch.bfloat16):
            logprobs, _ = scorer(hidden[0], torch.arange(5), 0.7)
        logprobs.square().sum().backward()
        found.append([logprobs, hidden.grad, head.weight.grad])
    for one, other in zip(*found, strict=True):
        assert float((one - other).abs().max()) <= 2e-2 * float(other.abs().max())


def test_one_copy_serves_all_rows_and_a_new_one_the_next_step() -> None:
    layer, products = layer_of(), TrainedProducts()
    compute_products(layer, products)
    for _ in range(2):
        with products.kept(), Operations() as operations:
            for row in rows():
                with torch.autocast("cpu", torch.bfloat16):
                    layer(row)
        # Each row is cast, and the weight and the bias once.
        assert operations.counts["aten._to_copy.default"] == 3 + 2, operations.counts
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            layer.weight.mul_(2)
            found = layer(rows()[0])
            assert torch.equal(found, nn.functional.linear(rows()[0], layer.weight, layer.bias))


def test_the_hooks_of_a_weight_run_after_each_gradient_was_added() -> None:
    seen: list[list[Tensor]] = [[], []]
    plain, layer = layer_of(), layer_of()
    compute_products(layer, TrainedProducts())
    for model, gradients in zip((plain, layer), seen, strict=True):
        model.weight.register_post_accumulate_grad_hook(
            lambda weight, gradients=gradients: gradients.append(weight.grad.clone())
        )
        trained(model, rows())
    assert len(seen[0]) == len(seen[1]) == 3
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_a_frozen_weight_gets_no_gradient() -> None:
    layer, products = layer_of().requires_grad_(False), TrainedProducts()
    compute_products(layer, products)
    found = trained(layer, rows())
    assert len(found) == 6 and layer.weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_autocast_or_float32_weights_torch_computes(dtype: torch.dtype) -> None:
    layer, products = layer_of().to(dtype), TrainedProducts()
    compute_products(layer, products)
    row = rows()[0].to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = layer(row)
    assert "Product" not in type(found.grad_fn).__name__
    assert torch.equal(found, nn.functional.linear(row, layer.weight, layer.bias))
