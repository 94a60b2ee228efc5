"""Token log-probabilities in chunks against all logits at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from services.learner import logprobs as module
from services.learner.logprobs import TokenScorer

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "metrics.json"
HIDDEN, VOCABULARY, TOKENS = 16, 50, 23


def golden(variant: str) -> list[Any]:
    if not GOLDEN.exists():
        return []
    cases = json.loads(GOLDEN.read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["variant"] == variant]


def scored(chunk_tokens: int, temperature: float, *, weight: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    """Log-probabilities, entropies, and the gradients of a weighted sum of the former."""
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head.weight = nn.Parameter(weight.clone())
    hidden = hidden.clone().requires_grad_()
    targets = torch.arange(TOKENS) * 7 % VOCABULARY
    logprobs, entropies = TokenScorer(head, chunk_tokens=chunk_tokens)(hidden, targets, temperature)
    (logprobs * torch.linspace(-1, 1, TOKENS)).sum().backward()
    assert hidden.grad is not None and head.weight.grad is not None
    return logprobs.detach(), entropies, hidden.grad, head.weight.grad


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1, 8, 23, 1000])
def test_chunks_give_the_values_and_gradients_of_all_logits_at_once(
    chunk_tokens: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 5 * 4 * VOCABULARY)
    torch.manual_seed(0)
    weight, hidden = torch.randn(VOCABULARY, HIDDEN), torch.randn(TOKENS, HIDDEN)
    got = scored(chunk_tokens, temperature, weight=weight, hidden=hidden)

    weight, hidden = weight.clone().requires_grad_(), hidden.clone().requires_grad_()
    distribution = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    logprobs = distribution[torch.arange(TOKENS), torch.arange(TOKENS) * 7 % VOCABULARY]
    entropies = -(distribution.exp() * distribution).sum(-1)
    (logprobs * torch.linspace(-1, 1, TOKENS)).sum().backward()
    for name, mine, plain in zip(
        ("log-probabilities", "entropies", "gradient of hidden", "gradient of weight"),
        got,
        (logprobs.detach(), entropies.detach(), hidden.grad, weight.grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", golden("token_logprobs"))
def test_log_probabilities_and_gradients_are_those_of_the_golden_case(case: dict[str, Any]) -> None:
    logits = torch.tensor(case["inputs"]["logits"]).requires_grad_()
    scorer = _identity(logits.shape[-1])
    logprobs, _ = scorer(logits, torch.tensor(case["inputs"]["labels"]), case["config"]["temperature"])
    logprobs.sum().backward()
    expected = case["expected"]
    torch.testing.assert_close(logprobs.detach(), torch.tensor(expected["logprobs"]), rtol=1e-5, atol=1e-5)
    if "grad_logits_of_sum" in expected:
        torch.testing.assert_close(logits.grad, torch.tensor(expected["grad_logits_of_sum"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", golden("entropy"))
def test_entropies_are_those_of_the_golden_case(case: dict[str, Any]) -> None:
    logits = torch.tensor(case["inputs"]["logits"])
    targets = torch.zeros(len(logits), dtype=torch.int64)
    _, entropies = _identity(logits.shape[-1])(logits, targets, case["config"]["temperature"])
    torch.testing.assert_close(entropies, torch.tensor(case["expected"]["entropy"]), rtol=1e-5, atol=1e-5)


def _identity(size: int) -> TokenScorer:
    head = nn.Linear(size, size, bias=False)
    head.weight = nn.Parameter(torch.eye(size))
    return TokenScorer(head, chunk_tokens=2)
