"""Token log-probabilities in chunks against all logits at once."""

import pytest
import torch
from torch import Tensor, nn

from services.learner.model import logprobs as module
from services.learner.model.logprobs import TokenScorer

HIDDEN, VOCABULARY, TOKENS = 16, 50, 23


def weighted_sum(logprobs: Tensor, entropies: Tensor, *, with_entropy: bool) -> Tensor:
    total = (logprobs * torch.linspace(-1, 1, TOKENS)).sum()
    return total + (entropies * torch.linspace(2, -1, TOKENS)).sum() if with_entropy else total


def scored(
    chunk_tokens: int, temperature: float, *, weight: Tensor, hidden: Tensor, with_entropy: bool
) -> tuple[Tensor, ...]:
    """Returns log-probabilities, entropies, and the gradients of a weighted sum of the former, or of both."""
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head.weight = nn.Parameter(weight.clone())
    hidden = hidden.clone().requires_grad_()
    targets = torch.arange(TOKENS) * 7 % VOCABULARY
    scorer = TokenScorer(head, chunk_tokens=chunk_tokens)
    scorer.entropy_gradient = with_entropy
    logprobs, entropies = scorer(hidden, targets, temperature)
    assert entropies.requires_grad == with_entropy
    weighted_sum(logprobs, entropies, with_entropy=with_entropy).backward()
    assert hidden.grad is not None and head.weight.grad is not None
    return logprobs.detach(), entropies.detach(), hidden.grad, head.weight.grad


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1, 8, 23, 1000])
def test_chunks_give_the_values_and_gradients_of_all_logits_at_once(
    chunk_tokens: int, temperature: float, with_entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 5 * 4 * VOCABULARY)
    torch.manual_seed(0)
    weight, hidden = torch.randn(VOCABULARY, HIDDEN), torch.randn(TOKENS, HIDDEN)
    got = scored(chunk_tokens, temperature, weight=weight, hidden=hidden, with_entropy=with_entropy)

    weight, hidden = weight.clone().requires_grad_(), hidden.clone().requires_grad_()
    distribution = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    logprobs = distribution[torch.arange(TOKENS), torch.arange(TOKENS) * 7 % VOCABULARY]
    entropies = -(distribution.exp() * distribution).sum(-1)
    weighted_sum(logprobs, entropies, with_entropy=with_entropy).backward()
    for name, mine, plain in zip(
        ("log-probabilities", "entropies", "gradient of hidden", "gradient of weight"),
        got,
        (logprobs.detach(), entropies.detach(), hidden.grad, weight.grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_a_likely_token_beside_large_logits_keeps_its_last_digits() -> None:
    """At a low temperature logits of 30 are 300: float32 has steps of 3e-5 there."""
    logits = torch.tensor([[30.0, 29.75, 10.0, -20.0]]).requires_grad_()
    head = nn.Linear(4, 4, bias=False)
    nn.init.eye_(head.weight)
    logprobs, entropies = TokenScorer(head, chunk_tokens=8)(logits, torch.tensor([0]), 0.1)
    logprobs.sum().backward()
    wanted = torch.log_softmax(logits.detach().double() / 0.1, -1)[0]
    assert abs(logprobs.item() - wanted[0].item()) < 1e-7, f"{logprobs.item()}, wanted {wanted[0].item()}"
    entropy = -float((wanted.exp() * wanted).sum())
    assert abs(entropies.item() - entropy) < 1e-7, f"{entropies.item()}, wanted {entropy}"
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0, 1].item(), -10 * wanted[1].exp().item(), rtol=1e-6, atol=0)
