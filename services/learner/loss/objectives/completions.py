"""The completion of each token, and sums over completions.

C tokens, S completions. No statistic of a completion depends on the row of a token, or on other completions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    """For each token, the completion to which the token belongs."""

    index_C: Tensor
    """The index of each token's completion, [C] int64, from 0 to S - 1 in any order."""
    num: int
    """The number of completions, S, including completions without tokens."""

    def sum(self, values_C: Tensor) -> Tensor:
        """Sums each completion's values, [S]; 0 for a completion without tokens."""
        return values_C.new_zeros(self.num).index_add(0, self.index_C, values_C)

    def mean(self, values_C: Tensor) -> Tensor:
        """Averages each completion's values, [S]; 0 for a completion without tokens."""
        return self.sum(values_C) / self.sum(torch.ones_like(values_C)).clamp(min=1)

    def max(self, values_C: Tensor) -> Tensor:
        """Returns each completion's largest value, [S]; minus infinity for a completion without tokens."""
        lowest_S = values_C.new_full((self.num,), -torch.inf)
        return lowest_S.scatter_reduce(0, self.index_C, values_C, "amax")

    def num_tokens(self) -> Tensor:
        """Counts each completion's tokens, [S] int64."""
        return torch.bincount(self.index_C, minlength=self.num)

    def spread(self, values_S: Tensor) -> Tensor:
        """Returns for each token the value of its completion, [C]."""
        return values_S[self.index_C]
