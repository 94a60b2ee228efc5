"""Which completion each token belongs to, and sums over them.

C tokens, S completions. Losses see completions whole, whatever row they are packed in, so a statistic of a sequence
never mixes the completions of a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    """Of each token, its completion."""

    index_C: Tensor
    """[C] int64, 0 to S - 1, in any order."""
    num: int
    """S, completions without a token included."""

    def sum(self, values_C: Tensor) -> Tensor:
        """[S]; 0 for a completion without tokens."""
        return values_C.new_zeros(self.num).index_add(0, self.index_C, values_C)

    def mean(self, values_C: Tensor) -> Tensor:
        """[S]; 0 for a completion without tokens."""
        return self.sum(values_C) / self.sum(torch.ones_like(values_C)).clamp(min=1)

    def max(self, values_C: Tensor) -> Tensor:
        """[S]; minus infinity for a completion without tokens."""
        lowest_S = values_C.new_full((self.num,), -torch.inf)
        return lowest_S.scatter_reduce(0, self.index_C, values_C, "amax")

    def num_tokens(self) -> Tensor:
        """[S] int64."""
        return torch.bincount(self.index_C, minlength=self.num)

    def spread(self, values_S: Tensor) -> Tensor:
        """[C] each token's completion's value."""
        return values_S[self.index_C]
