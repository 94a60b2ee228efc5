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


def supports_of(targets: Tensor) -> Tensor:
    """Supports of 1 to 7 tokens, which begin with the targets; -1 after their ends."""
    rows = [[int(target), *range(40, 40 + index % 7)] for index, target in enumerate(targets)]
    return torch.tensor([row + [-1] * (7 - len(row)) for row in rows])


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1, 5, 1000])
def test_a_support_gives_the_values_and_gradients_of_all_logits_with_the_others_at_minus_infinity(
    chunk_tokens: int, temperature: float, with_entropy: bool, softcap: float | None
) -> None:
    torch.manual_seed(0)
    targets = torch.arange(TOKENS) * 7 % 40
    support = supports_of(targets)
    head = nn.Linear(HIDDEN, VOCABULARY)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    scorer = TokenScorer(head, chunk_tokens=chunk_tokens, logit_softcap=softcap)
    scorer.entropy_gradient = with_entropy
    logprobs, entropies = scorer(hidden, targets, temperature, support)
    assert entropies.requires_grad == with_entropy
    weighted_sum(logprobs, entropies, with_entropy=with_entropy).backward()
    mine = (logprobs, entropies, hidden.grad, head.weight.grad, head.bias.grad)

    plain, plain_hidden = nn.Linear(HIDDEN, VOCABULARY), hidden.detach().clone().requires_grad_()
    plain.load_state_dict(head.state_dict())
    logits = plain(plain_hidden)
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    is_in = torch.zeros(TOKENS, VOCABULARY, dtype=torch.bool)
    for row, ids in enumerate(support):
        is_in[row, ids[ids >= 0]] = True
    distribution = logits.masked_fill(~is_in, -torch.inf).log_softmax(-1)
    wanted_logprobs = distribution[torch.arange(TOKENS), targets]
    wanted_entropies = -(distribution.exp() * distribution.masked_fill(~is_in, 0)).sum(-1)
    weighted_sum(wanted_logprobs, wanted_entropies, with_entropy=with_entropy).backward()
    assert plain_hidden.grad is not None
    wanted = (wanted_logprobs, wanted_entropies, plain_hidden.grad, plain.weight.grad, plain.bias.grad)
    names = ("log-probabilities", "entropies", "gradient of hidden", "gradient of weight", "gradient of bias")
    for name, got, value in zip(names, mine, wanted, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    left_out = [token for token in range(VOCABULARY) if not is_in[:, token].any()]
    assert left_out and not head.weight.grad[left_out].any(), "a token in no support has a gradient"


def test_a_support_of_the_whole_vocabulary_gives_the_values_without_one() -> None:
    torch.manual_seed(0)
    scorer = TokenScorer(nn.Linear(HIDDEN, VOCABULARY, bias=False), chunk_tokens=8)
    hidden, targets = torch.randn(TOKENS, HIDDEN), torch.arange(TOKENS) * 7 % VOCABULARY
    others = torch.stack([torch.arange(VOCABULARY)[torch.arange(VOCABULARY) != target] for target in targets])
    restricted = scorer(hidden, targets, 0.7, torch.cat([targets[:, None], others], dim=1))
    for mine, plain in zip(restricted, scorer(hidden, targets, 0.7), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ([], [(0, 0, 1)]),
        ([3], [(0, 1, 3)]),
        ([1, 1, 1, 1], [(0, 4, 1)]),
        ([1, 2, 2, 9, 20], [(0, 3, 2), (3, 4, 9), (4, 5, 20)]),
        ([20, 20], [(0, 1, 20), (1, 2, 20)]),
    ],
)
def test_supports_of_similar_size_share_a_chunk(sizes: list[int], chunks: list[tuple[int, int, int]]) -> None:
    assert list(module._cut_by_size(sizes, 10)) == chunks


def test_one_large_support_is_no_padding_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scorer = TokenScorer(nn.Linear(HIDDEN, VOCABULARY, bias=False), chunk_tokens=8)
    support = torch.full((TOKENS, VOCABULARY), -1)
    support[:, 0] = torch.arange(TOKENS)
    support[7] = torch.arange(VOCABULARY).roll(-7)
    widths: list[int] = []
    plain = scorer._score_supports

    def counted(hidden: Tensor, chunk: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        widths.extend([chunk.shape[1]] * len(chunk))
        return plain(hidden, chunk, temperature)

    monkeypatch.setattr(scorer, "_score_supports", counted)
    hidden = torch.randn(TOKENS, HIDDEN)
    logprobs, entropies = scorer(hidden, support[:, 0], 1.0, support)
    assert sorted(widths) == [1] * (TOKENS - 1) + [VOCABULARY]
    dense, entropy = scorer(hidden, support[:, 0], 1.0)
    torch.testing.assert_close(logprobs[7], dense[7])
    torch.testing.assert_close(entropies[7], entropy[7])
    assert not logprobs[support[:, 1] < 0].any(), "the only token of a support has a log-probability of 0"


def test_a_row_without_scored_tokens_has_no_values() -> None:
    scorer = TokenScorer(nn.Linear(HIDDEN, VOCABULARY), chunk_tokens=8)
    for support in (None, torch.empty(0, 3, dtype=torch.int64)):
        logprobs, entropies = scorer(torch.empty(0, HIDDEN), torch.empty(0, dtype=torch.int64), 1.0, support)
        assert logprobs.shape == entropies.shape == (0,)
