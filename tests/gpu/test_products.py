"""Products of trained weights on a GPU against the same products in float32."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from services.learner.model.trained_products import TrainedProducts, compute_products

TOKENS, IN = 600, 256


@pytest.mark.parametrize("out", [256, 1003])
def test_a_product_adds_its_gradient_to_the_sum_of_all_rows_in_float32(out: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(IN, out).cuda()
    products = TrainedProducts(row_multiple=64)
    compute_products(layer, products)
    rows = [torch.randn(1, TOKENS, IN, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    weights = [torch.randn(1, TOKENS, out, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    sums: list[Tensor] = []
    with products.kept():
        for row, weight in zip(rows, weights, strict=True):
            with torch.autocast("cuda", torch.bfloat16):
                found = layer(row)
            (found * weight).sum().backward()
            assert layer.weight.grad is not None
            sums.append(layer.weight.grad)
            expected = functional.linear(row.float(), layer.weight.bfloat16().float(), layer.bias)
            assert float((found - expected).abs().max()) < 0.05
    assert sums[0] is sums[2] and sums[0].dtype == torch.float32, "the gradient was copied"
    exact = sum(weight[0].double().t() @ row[0].double() for row, weight in zip(rows, weights, strict=True))
    error = float((sums[0] - exact).norm() / exact.norm())
    assert error < 1e-5, f"the gradient differs from the exact one by {error:.2g} of its norm: it was rounded"
