"""Packed rows through a real (tiny) model: no token may see another sequence."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.learner.loss.loss_tokens import LossTokens
from services.learner.model.packing import PackedRow, pack_for_rank, sequence_row
from services.learner.model.policy import Policy, load_policy, load_reference
from shoal.config.tables.learner import LearnerConfig
from shoal.rollout import TrainGroup
from tests.support.train_batches import make_groups, with_segments

TEMPERATURE = 0.8


def settings(**values: object) -> LearnerConfig:
    return LearnerConfig.model_validate({"compute_dtype": "float32", **values})


def rows_of(groups: Sequence[TrainGroup], max_tokens: int) -> list[PackedRow]:
    rows, _ = pack_for_rank(groups, max_tokens=max_tokens, rank=0, num_ranks=1)
    return list(rows)


def weighted_sum(policy: Policy, rows: Sequence[PackedRow], groups: Sequence[TrainGroup]) -> Tensor:
    advantages = LossTokens.of_groups(groups).advantages_N
    return sum((policy(row, TEMPERATURE)[0] * advantages[row.at_C]).sum() for row in rows)


def unpacked(folder: Path, groups: Sequence[TrainGroup]) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the same weighted sum and its gradients with transformers alone, one sequence at a time."""
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = torch.zeros(())
    for group in groups:
        for rollout in group.rollouts:
            for segment in rollout.completion.segments(group.prompt_token_ids):
                prompt, own = segment.prompt_token_ids, rollout.completion.token_ids[segment.start : segment.end]
                tokens = torch.from_numpy(np.concatenate([prompt, own])).long()
                distribution = torch.log_softmax(lm(input_ids=tokens[None]).logits[0] / TEMPERATURE, dim=-1)
                logprobs = distribution[:-1].gather(-1, tokens[1:, None])[len(prompt) - 1 :]
                total = total + (logprobs * rollout.advantage).sum()
    total.backward()
    return total.detach(), {name: parameter.grad for name, parameter in lm.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("max_tokens", [40, 4096])
@pytest.mark.parametrize("is_cut", [False, True])
def test_packed_log_probabilities_and_gradients_are_those_of_the_sequences_alone(
    folder: Path, max_tokens: int, attention: str, is_cut: bool
) -> None:
    groups = make_groups(num_groups=5, group_size=4)
    if is_cut:  # Episodes of three segments beside plain completions.
        groups = tuple(with_segments(group, num_prompt_tokens=(6, 21, 3)) for group in groups)
    policy = load_policy(folder, settings(attention=attention))
    packed = weighted_sum(policy, rows_of(groups, max_tokens), groups)
    packed.backward()
    alone, gradients = unpacked(folder, groups)
    assert packed.item() == pytest.approx(alone.item(), abs=1e-3)
    for name, parameter in policy.lm.named_parameters():
        distance = (parameter.grad - gradients[name]).norm() / gradients[name].norm()
        assert distance < 1e-5, f"{name}: relative distance {distance:.2e}"


def test_each_packed_log_probability_is_within_1e_5_of_the_sequence_alone(folder: Path) -> None:
    rng = np.random.default_rng(0)
    # Longer than the limit of the plain formula, so that torch's fused attention runs too.
    sequences = [rng.integers(0, 256, size=length).astype(np.int32) for length in (300, 7, 2, 290, 40)]
    policy = load_policy(folder, settings())
    with torch.no_grad():
        packed, _ = policy(sequence_row(sequences), 1.0)
        alone = torch.cat([policy(sequence_row([sequence]), 1.0)[0] for sequence in sequences])
    assert float((packed - alone).abs().max()) < 1e-5


def test_gradient_checkpointing_changes_nothing_but_memory(folder: Path) -> None:
    groups = make_groups()
    gradients = []
    for is_on in (False, True):
        policy = load_policy(folder, settings(gradient_checkpointing=is_on)).train()
        weighted_sum(policy, rows_of(groups, 4096), groups).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_bfloat16_compute_keeps_float32_weights_and_gradients(folder: Path) -> None:
    groups = make_groups()
    exact = load_policy(folder, settings())
    policy = load_policy(folder, settings(compute_dtype="bfloat16"))
    (row,) = rows_of(groups, 4096)
    logprobs, _ = policy(row, 1.0)
    logprobs.sum().backward()
    gap = (logprobs - exact(row, 1.0)[0]).abs().max().item()
    assert 0 < gap < 0.1, f"bfloat16 moved a log-probability by {gap}"
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_the_reference_starts_equal_to_the_policy(folder: Path, tmp_path: Path, compute_dtype: str) -> None:
    # Like published models: the files have the type that the reference computes in.
    AutoModelForCausalLM.from_pretrained(folder).to(getattr(torch, compute_dtype)).save_pretrained(tmp_path)
    policy = load_policy(tmp_path, settings(compute_dtype=compute_dtype))
    reference = load_reference(tmp_path, settings(compute_dtype=compute_dtype))
    (row,) = rows_of(make_groups(), 4096)
    with torch.no_grad():
        assert torch.equal(policy(row, 1.0)[0], reference(row, 1.0)[0])
