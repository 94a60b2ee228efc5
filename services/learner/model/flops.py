"""The floating-point operations of a model on packed rows, and the rates of GPUs, for the model FLOPs utilization (MFU,
arXiv:2204.02311).

Only matrix products and causal attention count, of real tokens, without padding and without what is computed again. A
product of a matrix has 2 FLOPs for each value and token; the backward pass has 2 for the gradient of the inputs, and 2
for the gradient of the matrix if it is trained.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from services.learner.model.packing import PackedRow
from services.learner.model.weights import whole_shape

PEAKS = {
    "A100": 312e12,
    "A800": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "4090": 165e12,
}
"""FLOP/s of dense bfloat16 products by the data sheets, by a part of the device's name. The first match counts."""


def peak_of(device_name: str) -> float | None:
    """Returns the data sheet's FLOP/s of dense bfloat16 products of a GPU; None for an unknown device."""
    return next((rate for name, rate in PEAKS.items() if name in device_name), None)


@dataclass
class Work:
    """What rows have processed."""

    num_tokens: int = 0
    """Tokens of the rows, in which completions share their prompt."""
    flops: float = 0.0

    def add(self, other: "Work") -> None:
        """Adds other rows."""
        self.num_tokens += other.num_tokens
        self.flops += other.flops


class ModelFlops:
    """Counts the FLOPs of a language model. The weights may be sharded, quantized, frozen or adapted."""

    def __init__(self, lm: Any) -> None:
        text = lm.config.get_text_config()
        head = lm.get_output_embeddings()
        self._vocabulary, self._hidden = whole_shape(head.weight)
        self._head_passes = _num_passes(head.weight)
        self._products, self._reference_products = 0.0, 0.0
        for name, module in lm.named_modules():
            if module is head or isinstance(module, nn.Embedding):
                continue
            for parameter in module.parameters(recurse=False):
                values = _values_per_token(whole_shape(parameter), text)
                self._products += 2 * values * _num_passes(parameter)
                self._reference_products += 0 if ".lora_" in name else 2 * values
        self._layers = _attention_layers(text)

    def of(self, row: PackedRow, *, runs_reference: bool = False) -> Work:
        """Counts forward and backward pass of a row, and with `runs_reference` the forward pass of the reference.

        A token attends to the tokens before it in its sequence, and in a layer with a window to those in the window.
        With supports, only the logits of the supports count. An idle row counts nothing.
        """
        if not bool((row.at_C >= 0).any()):
            return Work()
        num_logits = len(row.targets_C) * self._vocabulary
        if row.support_CK is not None:
            num_logits = int((row.support_CK >= 0).sum())
        context_R = row.positions_R + 1
        attention = sum(
            count * flops * int((context_R if window is None else context_R.clamp(max=window)).sum())
            for (window, flops), count in self._layers.items()
        )
        flops = row.num_tokens * self._products + 2 * self._head_passes * num_logits * self._hidden + 3 * attention
        if runs_reference:
            flops += row.num_tokens * self._reference_products + 2 * num_logits * self._hidden + attention
        return Work(row.num_tokens, float(flops))


def _num_passes(parameter: nn.Parameter) -> int:
    return 3 if parameter.requires_grad else 2


def _values_per_token(shape: tuple[int, ...], text: Any) -> float:
    """Returns how many values of a parameter a token is multiplied with: of experts, those that it is routed to."""
    if len(shape) < 2:
        return 0.0
    size = float(torch.Size(shape).numel())
    num_routed = getattr(text, "num_experts_per_tok", None)
    return size * num_routed / shape[0] if len(shape) == 3 and num_routed else size


def _attention_layers(text: Any) -> Counter[tuple[int | None, int]]:
    """Counts the layers of a model by their window and the FLOPs of a pair of tokens, forward, in all heads."""
    layers = text.per_layer_config if getattr(text, "is_heterogeneous", False) else [text] * text.num_hidden_layers
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * len(layers)
    counts: Counter[tuple[int | None, int]] = Counter()
    for layer, kind in zip(layers, kinds, strict=True):
        size = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
        sizes = (getattr(layer, "qk_head_dim", None) or size) + (getattr(layer, "v_head_dim", None) or size)
        counts[window if kind == "sliding_attention" else None, 2 * layer.num_attention_heads * sizes] += 1
    return counts
