"""Packed rows through a real (tiny) model: no token may see another sequence."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from services.learner.loss.loss_tokens import LossTokens
from services.learner.model.packing import PackedRow, pack_for_rank, sequence_row
from services.learner.model.policy import Policy, load_policy, load_reference
from shoal.config.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.rollout import TrainGroup
from tests.support.tiny_model import make_tiny_model
from tests.support.train_batches import make_groups

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def settings(**values: object) -> LearnerConfig:
    return LearnerConfig.model_validate({"compute_dtype": "float32", **values})


def rows_of(groups: Sequence[TrainGroup], max_tokens: int) -> list[PackedRow]:
    rows, _ = pack_for_rank(groups, max_tokens=max_tokens, rank=0, num_ranks=1)
    return rows


def weighted_sum(policy: Policy, rows: Sequence[PackedRow], groups: Sequence[TrainGroup]) -> Tensor:
    advantages = LossTokens.of(groups).advantages_N
    return sum((policy(row, TEMPERATURE)[0] * advantages[row.at_C]).sum() for row in rows)


def unpacked(folder: Path, groups: Sequence[TrainGroup]) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the same weighted sum and its gradients with transformers alone, one sequence at a time."""
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = torch.zeros(())
    for group in groups:
        for rollout in group.rollouts:
            tokens = torch.from_numpy(np.concatenate([group.prompt_token_ids, rollout.completion.token_ids])).long()
            distribution = torch.log_softmax(lm(input_ids=tokens[None]).logits[0] / TEMPERATURE, dim=-1)
            logprobs = distribution[:-1].gather(-1, tokens[1:, None])[len(group.prompt_token_ids) - 1 :]
            total = total + (logprobs * rollout.advantage).sum()
    total.backward()
    return total.detach(), {name: parameter.grad for name, parameter in lm.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("max_tokens", [40, 4096])
def test_packed_log_probabilities_and_gradients_are_those_of_the_sequences_alone(
    folder: Path, max_tokens: int, attention: str
) -> None:
    groups = make_groups(num_groups=5, group_size=4)
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


TINY = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**TINY, use_sliding_window=True, sliding_window=3, max_window_layers=0),
        Qwen3Config(**TINY),
        Olmo2Config(**TINY),
        MistralConfig(**TINY, sliding_window=3),
        Gemma3TextConfig(**TINY, sliding_window=3, layer_types=["sliding_attention", "full_attention"]),
        GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_compute_on_packed_rows_what_they_compute_alone(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    # Loading is the proof: it compares packed with unpacked log-probabilities.
    load_policy(tmp_path, settings())


def test_a_model_that_caps_attention_scores_needs_an_implementation_that_can(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(Gemma2Config(**TINY, query_pre_attn_scalar=32)).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"learner\.attention: sdpa cannot cap attention scores"):
        load_policy(tmp_path, settings(attention="sdpa"))
    load_policy(tmp_path, settings(attention="eager"))


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**TINY, logits_scaling=4.0), MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1)],
    ids=lambda config: config.model_type,
)
def test_a_model_that_packing_would_break_is_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=r"model\.path: \w+ cannot be trained on packed rows"):
        load_policy(tmp_path, settings())


def test_a_folder_without_a_model_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"model\.path: .* cannot be loaded"):
        load_policy(tmp_path, settings())


def test_flash_attention_without_a_gpu_is_refused_with_the_cure(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InvalidArgument, match=r"learner\.attention: flash_attention_2 needs a GPU"):
        load_policy(folder, settings(attention="flash_attention_2"))


def test_truncated_weights_are_an_error_that_names_the_folder(tmp_path: Path) -> None:
    weights = make_tiny_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidArgument, match=rf"model\.path: {tmp_path} cannot be loaded"):
        load_policy(tmp_path, LearnerConfig())
