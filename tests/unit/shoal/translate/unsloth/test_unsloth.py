"""Tests of the translation of Unsloth's settings."""

from tests.support.translations import config_of


def test_the_defaults_of_unsloth_differ_from_those_of_trl() -> None:
    config = config_of("unsloth", {"max_steps": 100, "max_seq_length": 1024, "max_completion_length": 200})
    assert (config.learner.learning_rate, config.learner.weight_decay, config.run.seed) == (5e-5, 0.001, 3407)
    assert (config.learner.warmup_ratio, config.correction.weight) == (0.1, "none")
    assert (config.data.max_prompt_tokens, config.generator.max_model_len) == (824, 1024)
    assert config_of("unsloth", {"max_steps": 9, "loss_type": "bnpo"}).kl.coef == 0.001
