"""Tests of settings that several systems share."""

from tests.support.translations import ROLL_GUIDE, config_of, translate_values


def test_stop_strings_and_chat_templates_are_translated_for_every_system() -> None:
    roll = {"actor_infer.generating_args.stop_strings": ["</answer>"], "actor_train.data_args.template": "chatml"}
    config = config_of("roll", ROLL_GUIDE | roll)
    assert (config.sampling.stop_strings, config.model.chat_template) == (["</answer>"], "chatml")
    assert config_of("roll", ROLL_GUIDE | {"actor_train.data_args.template": "native"}).model.chat_template is None
    assert "known: native" in str(
        translate_values("roll", ROLL_GUIDE | {"actor_train.data_args.template": "x"}).blocking[0]
    )
    trl = {"generation_kwargs": {"stop": "</answer>"}}
    assert config_of("trl", trl, "run.num_steps=10").sampling.stop_strings == ["</answer>"]
    refused = translate_values("trl", {"generation_kwargs": {"seed": 1}}, "run.num_steps=10").blocking
    assert "only `stop` has a counterpart" in str(refused[0])
    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"}
    verl |= {"actor_rollout_ref.model.custom_chat_template": "{{ messages }}"}
    assert config_of("verl", verl, "run.num_steps=10").model.chat_template == "{{ messages }}"
