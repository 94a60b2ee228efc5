"""Tests of freezing a part of a model."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from services.learner.engine.optimizer import parameter_groups
from services.learner.model.policy import freeze
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument


def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def test_only_parameters_with_a_named_prefix_are_frozen_and_left_out_of_the_optimizer(folder: Path) -> None:
    lm = model(folder)
    freeze(lm, ["model.embed_tokens", "model.layers.1."])
    frozen = {name for name, parameter in lm.named_parameters() if not parameter.requires_grad}
    assert "model.embed_tokens.weight" in frozen
    assert "model.layers.1.mlp.up_proj.weight" in frozen
    assert not any(name.startswith(("model.layers.0.", "model.norm")) for name in frozen)
    (group,) = parameter_groups(lm, LearnerConfig())
    assert len(group["params"]) == len(list(lm.parameters())) - len(frozen)


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (["model.layers.0.", "vision_model"], '"vision_model"; use, for example, model.embed_tokens, model.layers'),
        (["lm_head"], "lm_head"),
        (["model."], "learner.freeze: model. cover every parameter of a LlamaForCausalLM"),
    ],
)
def test_a_prefix_of_nothing_and_prefixes_of_everything_are_refused(
    folder: Path, prefixes: list[str], message: str
) -> None:
    lm = model(folder)
    with pytest.raises(InvalidArgument) as error:
        freeze(lm, prefixes)
    assert message in str(error.value)
    assert all(parameter.requires_grad for parameter in lm.parameters()), "nothing is frozen by half"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"freeze": [""]}, "an empty prefix"), ({"freeze": ["model."], "lora": {"rank": 4}}, "no effect with lora")],
)
def test_settings_that_would_freeze_everything_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LearnerConfig.model_validate(options)
