"""The reference on one rank: fixed, following, absent."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.learner.engine.reference import ReferenceModel, follow
from services.learner.learner import Learner
from services.learner.model.policy import load_policy, load_reference
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import FailedPrecondition
from tests.support.configs import run_config

SETTINGS = LearnerConfig(compute_dtype="bfloat16", zero_stage=0)


def test_an_alpha_of_1_makes_the_reference_equal_to_the_policy_to_the_bit() -> None:
    reference, policy = torch.randn(50), torch.randn(50)
    follow(reference, policy, 1.0)
    assert torch.equal(reference, policy)


def test_a_reference_that_follows_keeps_steps_that_bfloat16_would_lose(folder: Path) -> None:
    policy = load_policy(folder, SETTINGS)
    model = load_reference(folder, SETTINGS, is_fixed=False)
    reference = ReferenceModel(model, SETTINGS, device=torch.device("cpu"))
    before = {name: parameter.clone() for name, parameter in reference.full_parameters()}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1e-5
    reference.follow(((name, tensor.data) for name, tensor in policy.lm.named_parameters()), 0.25)
    for name, after in reference.full_parameters():
        torch.testing.assert_close(after - before[name], torch.full_like(after, 2.5e-6), atol=2e-7, rtol=0)


def test_a_fixed_reference_has_weights_of_the_type_that_it_computes_in(folder: Path) -> None:
    dtypes = {parameter.dtype for parameter in load_reference(folder, SETTINGS).parameters()}
    assert dtypes == {torch.bfloat16}
    assert {p.dtype for p in load_reference(folder, SETTINGS, is_fixed=False).parameters()} == {torch.float32}


def test_a_reference_loads_saved_weights(folder: Path, tmp_path: Path) -> None:
    reference = ReferenceModel(load_reference(folder, SETTINGS, is_fixed=False), SETTINGS, device=torch.device("cpu"))
    names = [name for name, _ in reference.full_parameters()]
    saved = {name: torch.randn_like(tensor) for name, tensor in reference.full_parameters()}
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: saved[name] for name in part}, tmp_path / f"{number}.safetensors")
    reference.load(sorted(tmp_path.iterdir()))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in reference.full_parameters())


def test_a_run_without_a_kl_term_needs_no_reference() -> None:
    config = run_config()
    assert not config.kl.needs_reference
    nothing: Any = None
    with pytest.raises(FailedPrecondition, match=r"kl\.coef") as caught:
        Learner(config, nothing, nothing, None, lm=None, model=nothing, pack_tokens=1).require_reference()
    assert caught.value.reason == "NO_REFERENCE"
