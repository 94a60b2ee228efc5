"""Experts that compute in bfloat16 with float32 masters, against the reference and the plain model."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from services.learner.model.packing import PackedRow, sequence_row
from services.learner.model.policy import Policy, load_policy, load_reference
from shoal.config.tables.learner import LearnerConfig
from shoal.models.linear_layers import find_experts
from tests.support.operations import Operations
from tests.support.tiny_families import save_family

WITH_EXPERTS = (
    "qwen3-moe", "qwen3-next", "qwen3.5-moe", "glm4.5-moe", "deepseek-v3", "gpt-oss", "mixtral", "olmoe", "granitemoe",
    "minimax-m2", "lfm2-moe",
)  # fmt: skip


def settings(compute_dtype: str) -> LearnerConfig:
    return LearnerConfig.model_validate({"compute_dtype": compute_dtype, "zero_stage": 0})


def rows() -> list[PackedRow]:
    rng = np.random.default_rng(0)
    return [
        sequence_row([rng.integers(0, 90, size=length).astype(np.int32) for length in lengths])
        for lengths in ((60, 40), (90,), (30, 30, 30))
    ]


def save_in_bfloat16(family: str, folder: Path, **changed: object) -> None:
    lm = save_family(family, folder, **changed)
    lm.to(torch.bfloat16).save_pretrained(folder)


def trained(policy: Policy) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the log-probabilities of rows, and the gradients of their sum."""
    logprobs = []
    with nullcontext() if policy.products is None else policy.products.kept():
        for row in rows():
            logprobs.append(policy(row, 1.0)[0])
            logprobs[-1].sum().backward()
    gradients = {name: parameter.grad for name, parameter in policy.lm.named_parameters() if parameter.grad is not None}
    return torch.cat(logprobs).detach(), gradients


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_a_fresh_policy_computes_what_the_reference_in_bfloat16_computes(family: str, tmp_path: Path) -> None:
    save_in_bfloat16(family, tmp_path)
    policy, reference = (load(tmp_path, settings("bfloat16")) for load in (load_policy, load_reference))
    with torch.no_grad():
        for row in rows():
            distance = float((policy(row, 1.0)[0] - reference(row, 1.0)[0]).abs().max())
            assert distance == 0, f"{family}: a log-probability differs by {distance:.2g}"


def errors(family: str, folder: Path, **changed: object) -> tuple[float, dict[str, float]]:
    """Returns the mean error of log-probabilities in bfloat16, and each gradient's relative error, against float32."""
    save_in_bfloat16(family, folder, **changed)
    (logprobs, gradients), (exact_logprobs, exact) = (
        trained(load_policy(folder, settings(dtype))) for dtype in ("bfloat16", "float32")
    )
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    relative = {name: float((gradients[name] - exact[name]).norm() / exact[name].norm()) for name in exact}
    return float((logprobs - exact_logprobs).abs().mean()), relative


def test_logprobs_and_gradients_have_the_errors_of_dense_layers(tmp_path: Path) -> None:
    """Each token has all experts, since a token whose rounded scores choose another expert is another function."""
    dense, dense_gradients = errors("qwen3", tmp_path / "dense")
    mixed, mixed_gradients = errors("qwen3-moe", tmp_path / "mixed", num_experts_per_tok=4)
    assert mixed <= 1.5 * dense, f"log-probabilities err by {mixed:.2g}, those of a dense model by {dense:.2g}"
    of_experts = {name: error for name, error in mixed_gradients.items() if ".experts." in name}
    assert len(of_experts) == 6
    worst, bound = max(of_experts, key=of_experts.__getitem__), max(dense_gradients.values())
    assert of_experts[worst] <= 1.5 * bound, f"{worst} errs by {of_experts[worst]:.2g}, a dense model by {bound:.2g}"


def test_one_copy_of_the_experts_serves_all_rows(tmp_path: Path) -> None:
    save_in_bfloat16("mixtral", tmp_path)
    policy = load_policy(tmp_path, settings("bfloat16"))
    assert policy.products is not None
    num_casts = []
    with policy.products.kept():
        for row in rows():
            with Operations() as operations:
                policy(row, 1.0)[0].sum().backward()
            num_casts.append(operations.num_weight_casts)
    num_routers = len(find_experts(policy.lm))
    assert num_casts[1:] == [num_routers] * 2, f"rows cast {num_casts} weights, and there are {num_routers} routers"


def test_experts_in_float32_are_those_of_transformers_to_the_bit(tmp_path: Path) -> None:
    save_in_bfloat16("mixtral", tmp_path)
    found, expected = (load_policy(tmp_path, settings("float32")) for _ in range(2))
    for experts in find_experts(expected.lm).values():
        experts.__class__ = MixtralExperts
    (logprobs, gradients), (plain_logprobs, plain) = trained(found), trained(expected)
    assert torch.equal(logprobs, plain_logprobs)
    assert [name for name in plain if not torch.equal(gradients[name], plain[name])] == []


def test_recomputed_experts_have_the_same_gradients(tmp_path: Path) -> None:
    save_in_bfloat16("qwen3-moe", tmp_path)
    config = settings("bfloat16")
    _, expected = trained(load_policy(tmp_path, config))
    _, found = trained(load_policy(tmp_path, config.model_copy(update={"gradient_checkpointing": True})).train())
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_an_auxiliary_loss_of_the_models_configuration_has_no_effect(tmp_path: Path) -> None:
    save_in_bfloat16("mixtral", tmp_path / "plain")
    save_in_bfloat16("mixtral", tmp_path / "auxiliary", output_router_logits=True, router_aux_loss_coef=0.5)
    plain, auxiliary = (load_policy(tmp_path / name, settings("float32")) for name in ("plain", "auxiliary"))
    assert auxiliary.lm.config.router_aux_loss_coef == 0.5
    assert not auxiliary.lm.config.output_router_logits, "every layer would keep the scores of its router"
    (_, found), (_, expected) = trained(auxiliary), trained(plain)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
