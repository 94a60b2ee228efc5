"""Log-probabilities and entropies of scored tokens, computed a chunk of logits at a time.

Letters: C scored tokens, B in a block, E hidden size, V vocabulary size, K tokens of the largest support.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from services.learner.model.gpu_kernels import can_run_kernels
from services.learner.model.trained_products import TrainedProducts

_BLOCK_BYTES = 8 << 20
"""Size of the float32 values of one block, which should fit the caches of a CPU."""


class TokenScorer(nn.Module):
    """The model's output layer as a module that returns log-probabilities instead of logits.

    The module shares the layer's parameters. Each forward calls this module once, so DeepSpeed gathers the layer's
    weight once for any number of chunks. The number of collectives must not depend on a rank's tokens.
    """

    def __init__(
        self,
        head: nn.Linear,
        *,
        chunk_tokens: int,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        products: TrainedProducts | None = None,
    ) -> None:
        super().__init__()
        self.products = products
        self.weight = head.weight
        self.bias = head.bias
        # The weight does not tell: it is empty while it is sharded.
        self.vocabulary = head.out_features
        self.chunk_tokens = chunk_tokens
        self.logit_scale = logit_scale
        self.logit_softcap = logit_softcap
        self.entropy_gradient = False
        """Whether the entropies have a gradient, for an entropy bonus. It costs a second pass over the logits."""

    def forward(
        self, hidden_CE: Tensor, targets_C: Tensor, temperature: float, support_CK: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Computes the targets' log-probabilities at the temperature, [C], and the entropies, [C]; both float32.

        The distributions are over the whole vocabulary, or over the supports, which begin with the targets. The
        log-probabilities have a gradient; the entropies have one if `entropy_gradient` is set. At most `chunk_tokens`
        rows of logits exist at once. With supports, the gathered rows of the weight have at most as many values. With
        more than one chunk the backward pass recomputes the logits.
        """
        if self.logit_softcap is None:
            temperature = temperature / self.logit_scale
        if support_CK is not None:
            return self._score_by_size(hidden_CE, support_CK, temperature)
        pairs = zip(hidden_CE.split(self.chunk_tokens), targets_C.split(self.chunk_tokens), strict=True)
        return _in_chunks(self._score, list(pairs), temperature)

    def _score_by_size(self, hidden_CE: Tensor, support_CK: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Scores tokens with supports of similar size together: one large support would pad all others."""
        sizes_C, order_C = (support_CK >= 0).sum(dim=-1).sort()
        max_ids = self.chunk_tokens * self.vocabulary // hidden_CE.shape[1]
        hidden_CE, support_CK = hidden_CE[order_C], support_CK[order_C]
        pairs = [
            (hidden_CE[start:end], support_CK[start:end, :largest])
            for start, end, largest in _cut_by_size(sizes_C.tolist(), max_ids)
        ]
        logprobs_C, entropy_C = _in_chunks(self._score_supports, pairs, temperature)
        place_C = order_C.argsort()
        return logprobs_C[place_C], entropy_C[place_C]

    def _score_supports(self, hidden_CE: Tensor, support_CK: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Computes only the logits of the supports, from their rows of the weight: other tokens have no gradient."""
        is_padding_CK = support_CK < 0
        ids_CK = support_CK.clamp(min=0)
        logits_CK = (nn.functional.embedding(ids_CK, self.weight) @ hidden_CE[:, :, None]).squeeze(-1)
        if self.bias is not None:
            logits_CK = logits_CK + self.bias[ids_CK]
        scaled_CK = self._softcapped(logits_CK).float() / temperature
        logprobs_CK = scaled_CK.masked_fill(is_padding_CK, -torch.inf).log_softmax(dim=-1)
        entropy_C = -(logprobs_CK.exp() * logprobs_CK.masked_fill(is_padding_CK, 0.0)).sum(dim=-1)
        return logprobs_CK[:, 0], entropy_C if self.entropy_gradient else entropy_C.detach()

    def _score(self, hidden_CE: Tensor, targets_C: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        linear = nn.functional.linear if self.products is None else self.products.linear
        logits_CV = self._softcapped(linear(hidden_CE, self.weight, self.bias))
        function = TokenLogprobs
        if can_run_kernels(logits_CV.device):
            # Torch's builds for CPUs come without Triton.
            from services.learner.model.fused_logprobs import FusedTokenLogprobs as function
        scored: tuple[Tensor, Tensor] = function.apply(logits_CV, targets_C, temperature, self.entropy_gradient)
        return scored

    def _softcapped(self, logits: Tensor) -> Tensor:
        cap = self.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits * (self.logit_scale / cap))


def logit_scale(text_config: Any) -> float:
    """Returns the number by which a model multiplies the logits of its output layer."""
    for name in ("lm_head_multiplier", "logit_scale"):
        if (scale := getattr(text_config, name, None)) is not None:
            return float(scale)
    scaling = getattr(text_config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    # Only HyperCLOVA X multiplies by the field that Granite and MiniCPM 3 divide by.
    return float(scaling) if text_config.model_type.startswith("hyperclovax") else 1 / float(scaling)


class TokenLogprobs(torch.autograd.Function):
    """Computes log softmax(logits / temperature) at the targets, and the entropy.

    The function works in blocks of rows, so that float32 values of the vocabulary exist for only one block, and
    overwrites the logits with their gradient. Plain autograd would make several float32 copies of all logits.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_CV: Tensor, targets_C: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        # Keep the largest logit apart from the log-sum-exp. In their sum the logarithm would lose its last digits, and
        # with them the log-probability of a likely token, which is the difference of the two.
        max_C, lse_C, logprobs_C, entropy_C = torch.empty(4, len(targets_C), device=logits_CV.device)
        for rows in _blocks(logits_CV):
            scaled_BV = logits_CV[rows].float() / temperature
            max_C[rows] = scaled_BV.amax(dim=-1)
            scaled_BV.sub_(max_C[rows, None])
            exp_BV = torch.exp(scaled_BV)
            sum_B = exp_BV.sum(dim=-1)
            lse_C[rows] = torch.log(sum_B)
            logprobs_C[rows] = scaled_BV.gather(-1, targets_C[rows, None]).squeeze(-1) - lse_C[rows]
            entropy_C[rows] = lse_C[rows] - torch.linalg.vecdot(exp_BV, scaled_BV) / sum_B
        ctx.save_for_backward(logits_CV, targets_C, max_C, lse_C, entropy_C)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_C)
        return logprobs_C, entropy_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_C, entropy_grad_C = grads
        logits_CV, targets_C, max_C, lse_C, entropy_C = ctx.saved_tensors
        for rows in _blocks(logits_CV):
            # d logprob / d logit = ([target] - softmax) / temperature
            grad_B = grad_C[rows, None] / ctx.temperature
            block_BV = (logits_CV[rows].float() / ctx.temperature).sub_(max_C[rows, None])
            block_BV.sub_(lse_C[rows, None])
            if ctx.entropy_gradient:
                # d entropy / d logit = -softmax (log softmax + entropy) / temperature
                entropy_grad_B = entropy_grad_C[rows, None] / ctx.temperature
                weights_BV = -grad_B - entropy_grad_B * (block_BV + entropy_C[rows, None])
                block_BV.exp_().mul_(weights_BV)
            else:
                block_BV.exp_().mul_(-grad_B)
            logits_CV[rows] = block_BV.scatter_add_(-1, targets_C[rows, None], grad_B)
        return logits_CV, None, None, None


def _in_chunks(
    score: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]],
    pairs: Sequence[tuple[Tensor, Tensor]],
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Scores the chunks one after the other. With several chunks the backward pass computes the chunks again."""
    if len(pairs) == 1:
        return score(*pairs[0], temperature)
    scored = [checkpoint(score, hidden, choices, temperature, use_reentrant=False) for hidden, choices in pairs]
    logprobs, entropies = zip(*scored, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _cut_by_size(sizes: Sequence[int], max_ids: int) -> Iterator[tuple[int, int, int]]:
    """Yields chunks of tokens of ascending size as (start, end, largest size): one token, or at most `max_ids` ids."""
    start = 0
    for end in range(1, len(sizes)):
        if (end + 1 - start) * sizes[end] > max_ids:
            yield start, end, sizes[end - 1]
            start = end
    yield start, len(sizes), sizes[-1] if sizes else 1


def _blocks(logits_CV: Tensor) -> Iterator[slice]:
    """Yields slices of rows, whose float32 values take at most `_BLOCK_BYTES`."""
    num_rows, vocabulary = logits_CV.shape
    step = max(1, _BLOCK_BYTES // (4 * vocabulary))
    for start in range(0, num_rows, step):
        yield slice(start, start + step)
