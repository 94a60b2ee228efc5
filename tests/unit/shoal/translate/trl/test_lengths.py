"""Tests of the lengths of prompts and completions."""

from tests.support.translations import translate_values


def test_a_context_that_would_cut_completions_off_is_noted() -> None:
    lengths = {"max_prompt_length": 512, "max_completion_length": 1024, "max_steps": 5}
    result = translate_values("trl", lengths | {"vllm_max_model_length": 1024})
    assert "max_model_len" not in result.values["generator"]
    assert any("vllm_max_model_length = 1024 " in note for note in result.notes)
    assert "max_model_len" not in translate_values("unsloth", lengths | {"max_seq_length": 1024}).values["generator"]


def test_a_limit_that_trl_does_not_have_is_noted() -> None:
    assert any("more than 2048" in note for note in translate_values("trl", {"max_steps": 5}).notes)
