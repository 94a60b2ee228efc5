"""Packed rows of every model family against the plain model on each sequence: log-probabilities and gradients."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.mixers import find_mixers
from services.learner.model.packing import PackedRow, pack_for_rank
from services.learner.model.policy import Policy
from services.learner.model.trained_products import TrainedProducts
from shoal.config.tables.learner import LearnerConfig
from shoal.models.text_part import auto_class, keep_text_part
from shoal.rollout import TrainGroup
from tests.support.tiny_families import FAMILIES, READERS, SIZES
from tests.support.train_batches import make_group

TEMPERATURE = 0.7
RECURRENT = (
    "qwen3-next", "qwen3.5", "qwen3.5-moe", "olmo-hybrid", "granite4", "granite4-dense", "nemotron-h", "falcon-h1",
    "lfm2", "lfm2-moe", "kimi-linear", "bamba",
)  # fmt: skip


def model_of(family: str) -> Any:
    """Makes a random model in float32 whose layers all matter."""
    torch.manual_seed(0)
    config = (FAMILIES | READERS)[family]()
    lm = auto_class(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in lm.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return lm.eval()


def groups_of(*lengths: Sequence[int]) -> list[TrainGroup]:
    rng = np.random.default_rng(0)
    return [
        make_group(f"g{size}", num_prompt_tokens=size, completion_lengths=list(completions), rng=rng, vocab_size=90)
        for size, *completions in lengths
    ]


def packed_row(groups: list[TrainGroup]) -> PackedRow:
    (row,), _ = pack_for_rank(groups, max_tokens=4096, rank=0, num_ranks=1)
    return row


def policy_of(lm: Any, **settings: Any) -> Policy:
    lm.set_attn_implementation(register_attention(choose_attention(LearnerConfig(), lm.config)))
    return Policy(lm, **{"compute_dtype": torch.float32, "logits_chunk_tokens": 1024} | settings)


def plain_logprobs(lm: Any, groups: list[TrainGroup], row: PackedRow) -> Tensor:
    """Scores each sequence alone, in the order of the row."""
    prompts = {id(rollout): group.prompt_token_ids for group in groups for rollout in group.rollouts}
    scored = []
    for stretch in row.stretches:
        prompt = prompts[id(stretch.rollout)]
        tokens = torch.from_numpy(np.concatenate([prompt, stretch.token_ids]).astype(np.int64))
        logits = lm(input_ids=tokens[None], use_cache=False).logits[0].float() / TEMPERATURE
        of_tokens = torch.log_softmax(logits[:-1], -1).gather(-1, tokens[1:, None]).squeeze(-1)
        scored.append(of_tokens[len(prompt) - 1 :])
    return torch.cat(scored)


def gradient_of(lm: Any) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in lm.parameters()])


@pytest.mark.parametrize("family", FAMILIES | READERS)
def test_completions_that_share_a_prompt_get_the_logprobs_and_gradients_of_the_plain_model(family: str) -> None:
    lm = model_of(family)
    plain = copy.deepcopy(lm)
    keep_text_part(lm)
    groups = groups_of((20, 9, 13, 4), (5, 30, 2))
    row = packed_row(groups)
    found, _ = policy_of(lm)(row, TEMPERATURE)
    expected = plain_logprobs(plain, groups, row)
    difference = float((found - expected).detach().abs().max())
    assert difference < 1e-4, f"log-probabilities differ by up to {difference:.2g}"
    weights = torch.linspace(-1, 1, len(found))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    gradient, exact = gradient_of(lm), gradient_of(keep_text_part(plain))
    error = float((gradient - exact).norm() / exact.norm())
    assert error < 1e-4, f"the gradient differs by {error:.2g} of its norm"


@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_layers_are_found_and_recomputed_as_they_were_computed(family: str) -> None:
    lm = model_of(family)
    assert find_mixers(lm), "no recurrent layer was found"
    recomputed = copy.deepcopy(lm).train()
    recomputed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    row = packed_row(groups_of((20, 9, 13, 4), (5, 30, 2)))
    for model in (lm, recomputed):
        policy_of(model)(row, TEMPERATURE)[0].sum().backward()
    gradient, expected = gradient_of(recomputed), gradient_of(lm)
    error = float((gradient - expected).norm() / expected.norm())
    assert error < 1e-5, f"the gradient differs by {error:.2g} of its norm"


@pytest.mark.parametrize("family", ["qwen3.5", "falcon-h1", "granite4-dense", "lfm2"])
def test_recurrent_layers_compute_in_bfloat16_what_the_plain_model_computes(family: str) -> None:
    lm = model_of(family)
    plain = copy.deepcopy(lm)
    groups = groups_of((20, 9, 13, 4), (5, 30, 2))
    row = packed_row(groups)
    exact = plain_logprobs(plain, groups, row)
    with torch.autocast("cpu", torch.bfloat16):
        usual = float((plain_logprobs(plain, groups, row) - exact).detach().abs().max())
    policy = policy_of(lm, compute_dtype=torch.bfloat16, products=TrainedProducts())
    difference = float((policy(row, TEMPERATURE)[0] - exact).detach().abs().max())
    assert difference < 2 * usual, f"packed rows err by {difference:.2g}, single sequences by {usual:.2g}"


def test_every_token_of_the_tiny_models_fits_their_vocabulary() -> None:
    assert all(family().get_text_config().vocab_size == SIZES["vocab_size"] for family in FAMILIES.values())
