"""What `shoal config suggest` says fits what models and GPUs are."""

import json
from pathlib import Path

import pytest

from shoal.config import parse_config
from shoal.config.suggest import suggest
from shoal.config.suggest.cost import H100, step_time
from shoal.config.suggest.memory import generator_memory, learner_memory, model_shape
from shoal.errors import InvalidArgument

LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
QWEN_05B = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def _model(folder: Path, config: dict[str, object]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return _model(tmp_path / "small", QWEN_05B)


@pytest.fixture
def large(tmp_path: Path) -> str:
    return _model(tmp_path / "large", LLAMA_8B)


def test_parameters_are_those_of_the_published_models(small: str, large: str) -> None:
    assert model_shape(large).num_parameters == 8_030_261_248
    assert model_shape(small).num_parameters == 494_032_768


def test_the_tasks_begin_with_the_guides_values(small: str) -> None:
    config = suggest("math_reasoning", 80, small).config
    assert (config.grpo.group_size, config.sampling.max_completion_tokens) == (16, 500)
    assert (config.kl.coef, config.learner.learning_rate) == (0.05, 1e-5)
    config = suggest("instruction_following", 80, small).config
    assert (config.grpo.group_size, config.sampling.max_completion_tokens) == (8, 200)
    assert (config.kl.coef, config.learner.learning_rate) == (0.1, 5e-6)


def test_below_24_gb_the_group_is_halved_and_the_step_stays_as_large(small: str) -> None:
    wide, narrow = suggest("math_reasoning", 80, small).config, suggest("math_reasoning", 16, small).config
    assert narrow.grpo.group_size == wide.grpo.group_size // 2
    assert narrow.grpo.group_size * narrow.grpo.groups_per_step == wide.grpo.group_size * wide.grpo.groups_per_step


def test_an_unknown_task_names_the_known_ones(small: str) -> None:
    with pytest.raises(InvalidArgument, match="math_reasoning, instruction_following, code"):
        suggest("poetry", 80, small)


def test_what_is_written_is_the_configuration_and_every_line_has_a_reason(small: str) -> None:
    import tomllib

    suggestion = suggest("code", 24, small)
    assert parse_config(tomllib.loads(suggestion.toml)) == suggestion.config
    lines = suggestion.toml.splitlines()
    settings = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    bare = [lines[i] for i in settings if "#" not in lines[i] and not lines[i - 1].startswith(("#", "[["))]
    assert bare == []


def test_a_model_too_large_for_one_gpu_is_shared_and_one_too_large_for_all_is_refused(large: str) -> None:
    config = suggest("math_reasoning", 80, large).config
    assert config.learner.zero_stage == 3 and config.launch.num_learner_ranks >= 2
    assert not config.launch.single_gpu
    with pytest.raises(InvalidArgument, match=r"8\.0 billion parameters do not fit GPUs of 2 GB"):
        suggest("math_reasoning", 2, large)


def test_what_is_suggested_fits_by_its_own_estimate(small: str, large: str) -> None:
    for model in (small, large):
        for memory in (16, 24, 48, 80):
            try:
                suggestion = suggest("math_reasoning", memory, model)
            except InvalidArgument:
                continue
            assert suggestion.learner.total < memory * 1e9, f"{model} on {memory} GB"
            free = suggestion.config.generator.gpu_memory_utilization * memory * 1e9
            assert suggestion.generator.total < free, f"{model} on {memory} GB: {suggestion.generator.total / 1e9:.1f}"


def test_float32_states_take_sixteen_bytes_a_parameter_and_zero_shares_them(small: str) -> None:
    shape = model_shape(small)

    def states(stage: int, ranks: int) -> float:
        config = parse_config(
            {
                "model": {"path": small},
                "data": {"sources": [{"path": "d.jsonl"}]},
                "learner": {"zero_stage": stage, "compute_dtype": "float32"},
                "launch": {"num_learner_ranks": ranks},
            }
        )
        parts = learner_memory(config, shape).parts
        return (parts["weights"] + parts["gradients"] + parts["optimizer"]) / shape.num_parameters

    assert states(0, 1) == 16
    assert states(1, 4) == pytest.approx(4 + 4 + 12 / 4)
    assert states(2, 4) == pytest.approx(4 + 4 / 4 + 12 / 4)
    assert states(3, 4) == pytest.approx(20 / 4)


def test_the_cache_of_a_token_is_that_of_all_layers(large: str) -> None:
    config = suggest("math_reasoning", 80, large).config
    one = generator_memory(config, model_shape(large), num_sequences=1).parts["key-value cache"]
    per_token = one * config.generator.tensor_parallel_size / config.max_sequence_tokens
    assert per_token == 2 * 32 * 8 * 128 * 2, "two values of two bytes for 8 heads of 128 in 32 layers"


def test_the_cost_model_adds_generation_rewards_and_update(small: str) -> None:
    config, shape = suggest("math_reasoning", 80, small).config, model_shape(small)
    step = step_time(config, shape, H100)
    assert step.synchronous_s == step.generate_s + step.reward_s + step.update_s
    doubled = config.model_copy(update={"grpo": config.grpo.model_copy(update={"group_size": 32})})
    assert step_time(doubled, shape, H100).generate_s == pytest.approx(2 * step.generate_s)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    model = _model(tmp_path / "moe", {**LLAMA_8B, "num_local_experts": 8})
    with pytest.raises(InvalidArgument, match="num_local_experts = 8: mixture-of-experts training is put off"):
        suggest("code", 80, model)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"model_type": ', "cannot be read as JSON"),
        ("[]", "holds no JSON object"),
        (json.dumps(LLAMA_8B | {"num_attention_heads": 0}), "does not tell the model's size"),
        (json.dumps(LLAMA_8B | {"num_experts": "many"}), "num_experts = many"),
        ("{}", "does not tell the model's size"),
    ],
)
def test_a_model_that_cannot_be_read_is_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidArgument, match=reason):
        suggest("math_reasoning", 24, str(tmp_path))
    with pytest.raises(InvalidArgument, match="is empty"):
        suggest("math_reasoning", 24, "")
