"""Recurrent layers over packed rows: gated delta rules, state space models and short convolutions.

Such a layer is a causal function of a sequence, as attention is. So the layer gets the sequences of a row as attention
does, gathered into a few batches of similar length (`packing.Layout`), and its outputs go back to the row. transformers
can also pass the boundaries of sequences to such layers (`cu_seq_lens_q`, `seq_idx`). But the implementations in plain
torch ignore them without an error, and they cannot express a prompt that stands once for several completions.

Letters: R tokens of a row, N sequences of length L, E hidden size.
"""

from typing import Any

import torch
from torch import Tensor, nn

from services.learner.model.packing import Layout


class RowLayout:
    """The layout of the row that the model computes, for the model's recurrent layers."""

    layout: Layout | None = None


def pack_mixers(lm: Any, row: RowLayout) -> int:
    """Lets the recurrent layers of a language model compute packed rows. Returns the number of these layers.

    A layer is recurrent if it has a convolution over tokens of its own, which all known kinds have.
    """
    mixers = find_mixers(lm)
    for mixer in mixers:
        kind = type(mixer)
        mixer.__class__ = type(kind.__name__, (_PackedMixer, kind), {"__module__": kind.__module__})
        mixer.row = row
    return len(mixers)


def find_mixers(lm: Any) -> list[Any]:
    """Returns the recurrent layers of a language model. The towers of other media do not count."""
    layers = getattr(lm.get_decoder(), "layers", None) if hasattr(lm, "get_decoder") else None
    modules = () if layers is None else layers.modules()
    return [module for module in modules if any(isinstance(child, nn.Conv1d) for child in module.children())]


class _PackedMixer:
    """A recurrent layer that computes each sequence of a row."""

    row: RowLayout

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Computes hidden states [1, R, E] of a row; caches and masks are not used."""
        compute, layout = super().forward, self.row.layout  # type: ignore[misc]
        if layout is None or layout.output_R is None:
            computed: Tensor = compute(hidden_states)
            return computed
        outputs = [
            compute(hidden_states[0].index_select(0, bucket_NL.flatten()).unflatten(0, bucket_NL.shape)).flatten(0, 1)
            for bucket_NL in layout.buckets
        ]
        return torch.cat(outputs).index_select(0, layout.output_R).unsqueeze(0)
