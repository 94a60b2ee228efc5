"""Tests of freezing a part of a model."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from services.learner.engine.optimizer import parameter_groups
from services.learner.model.freezing import freeze
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from tests.support.tiny_families import save_family


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


def test_a_pattern_freezes_the_router_of_every_layer_and_nothing_else(tmp_path: Path) -> None:
    lm = save_family("qwen3-moe", tmp_path)
    freeze(lm, ["*.mlp.gate.*", "lm_head"])
    frozen = {name for name, parameter in lm.named_parameters() if not parameter.requires_grad}
    assert frozen == {"lm_head.weight"} | {f"model.layers.{layer}.mlp.gate.weight" for layer in range(3)}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("*.mlp.gat.*", 'that matches "*.mlp.gat.*" (did you mean *.mlp.gate.*?); use, for example, model.embed_'),
        ("*.mlp.gate", 'that matches "*.mlp.gate" (did you mean *.mlp.gate.*?);'),
        ("model.layers.*.mlp.gate.weigth", "(did you mean model.layers.*.mlp.gate.weight or "),
        ("model.layer.0.", 'that begins with "model.layer.0." (did you mean model.layers.0 or '),
    ],
)
def test_an_entry_of_nothing_is_refused_with_similar_ones_that_fit(tmp_path: Path, entry: str, message: str) -> None:
    lm = save_family("qwen3-moe", tmp_path)
    with pytest.raises(InvalidArgument) as error:
        freeze(lm, [entry])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (["model.layers.0.", "vision_model"], '"vision_model"; use, for example, model.embed_tokens, model.layers'),
        (["*.*"], "learner.freeze: *.* cover every parameter of a LlamaForCausalLM"),
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
    [
        ({"freeze": [""]}, 'freeze has the entry ""'),
        ({"freeze": ["lm_head", "*"]}, r'freeze has the entry "\*"'),
        ({"freeze": ["model."], "lora": {"rank": 4}}, "no effect with lora"),
    ],
)
def test_settings_that_would_freeze_everything_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LearnerConfig.model_validate(options)
