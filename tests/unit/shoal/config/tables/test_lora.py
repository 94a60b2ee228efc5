"""The `[learner.lora]` table and its combinations."""

import pytest

from shoal.config.changes import changed_config
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


def lora(**fields: object) -> dict[str, object]:
    return {"learner": {"lora": fields}}


def test_adapters_are_off_by_default_and_a_rank_turns_them_on() -> None:
    assert not run_config().learner.lora.is_on and run_config(**lora(rank=16)).learner.lora.is_on


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rank": 4, "target_modules": ["q_proj", "lm_head"]}, "lm_head cannot have an adapter"),
        ({"rank": 4, "target_modules": ["all-linear", "q_proj"]}, "name it alone"),
        ({"rank": 4, "target_modules": []}, "at least 1 item"),
        ({"rank": 4, "target_modules": [""]}, "must not be empty"),
        ({"quantization": "nf4"}, "quantization has no effect, because rank 0 trains no adapters: set rank"),
        ({"alpha": 64, "target_modules": ["q_proj"]}, "alpha and target_modules have no effect, because rank 0"),
        ({"rank": 4, "alpha": 0}, "learner.lora.alpha: input should be greater than or equal to 1"),
        ({"rank": 4, "quantization": "int8"}, "'none', 'nf4' or 'fp4'"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        run_config(**lora(**fields))
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("lora_r", 16, "use rank instead"),
        ("lora_alpha", 16, "use alpha instead"),
        ("load_in_4bit", True, 'use quantization = "nf4" instead'),
        ("use_dora", True, "DoRA is not available: remove the key"),
        ("modules_to_save", ["lm_head"], "training other modules beside the adapters is not available"),
        ("init_lora_weights", "pissa", "another initialization than LoRA's own (A random, B zero) is not available"),
    ],
)
def test_an_option_of_peft_is_refused_with_its_name_here_or_as_not_available(
    name: str, value: object, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        run_config(**lora(rank=4, **{name: value}))
    assert f"learner.lora: unknown key {name}; {reason}" in caught.value.message


def test_with_adapters_the_reference_is_no_second_model_and_cannot_follow() -> None:
    kl = {"coef": 0.1}
    assert run_config(kl=kl).loads_reference and not run_config(kl=kl, **lora(rank=4)).loads_reference
    with pytest.raises(InvalidArgument, match=r"kl\.reference_update_steps: with learner\.lora"):
        run_config(kl={**kl, "reference_update_steps": 2}, **lora(rank=4))


@pytest.mark.parametrize(
    "change", [{"rank": 8}, {"alpha": 1}, {"rslora": True}, {"target_modules": ["q_proj"]}, {"quantization": "nf4"}]
)
def test_a_resumed_run_keeps_the_form_of_its_adapters(change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=rf"learner\.lora\.{next(iter(change))}: "):
        changed_config(run_config(**lora(rank=4)), lora(**change))
