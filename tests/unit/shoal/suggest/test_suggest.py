"""Tests that suggested configurations fit their models and GPUs."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config import parse_config
from shoal.config.tables.lora import LoraConfig
from shoal.errors import InvalidArgument
from shoal.models.adapter_targets import num_adapter_weights
from shoal.suggest import suggest
from shoal.suggest.cost import H100, Rates, rates_of_run, step_time
from shoal.suggest.memory import _BUCKET_ELEMENTS, RUNTIME_BYTES, generator_memory, learner_memory
from shoal.suggest.rows import fit_rows
from shoal.suggest.shape import model_shape
from tests.support.configs import run_config

LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_05B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip


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


def test_parameter_counts_equal_those_of_the_published_models(small: str, large: str) -> None:
    assert model_shape(large).num_parameters == 8_030_261_248
    assert model_shape(small).num_parameters == 494_032_768


def test_the_tasks_start_from_the_values_of_the_guide(small: str) -> None:
    config = suggest("math_reasoning", 80, small).config
    assert (config.grpo.group_size, config.sampling.max_completion_tokens) == (16, 500)
    assert (config.kl.coef, config.learner.learning_rate) == (0.05, 1e-5)
    config = suggest("instruction_following", 80, small).config
    assert (config.grpo.group_size, config.sampling.max_completion_tokens) == (8, 200)
    assert (config.kl.coef, config.learner.learning_rate) == (0.1, 5e-6)


def test_below_24_gb_the_group_is_halved_and_the_step_keeps_its_size(small: str) -> None:
    wide, narrow = suggest("math_reasoning", 80, small).config, suggest("math_reasoning", 16, small).config
    assert narrow.grpo.group_size == wide.grpo.group_size // 2
    assert narrow.grpo.group_size * narrow.grpo.groups_per_step == wide.grpo.group_size * wide.grpo.groups_per_step


def test_an_unknown_task_names_the_known_ones(small: str) -> None:
    with pytest.raises(InvalidArgument, match="math_reasoning, instruction_following, code"):
        suggest("poetry", 80, small)


def test_the_toml_file_equals_the_configuration_and_gives_a_reason_for_every_line(small: str, tmp_path: Path) -> None:
    suggestion, adapters = suggest("code", 24, small), suggest("code", 16, _model(tmp_path / "3b", LLAMA_3B))
    for each in (suggestion, adapters):
        assert parse_config(tomllib.loads(each.toml)) == each.config
    assert adapters.config.learner.lora.quantization == "nf4"
    lines = suggestion.toml.splitlines()
    settings = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    bare = [lines[i] for i in settings if "#" not in lines[i] and not lines[i - 1].startswith(("#", "[["))]
    assert bare == []


def test_a_model_too_large_for_one_gpu_is_sharded_and_one_too_large_for_all_is_refused(large: str) -> None:
    config = suggest("math_reasoning", 80, large).config
    assert config.learner.zero_stage == 3 and config.launch.num_learner_ranks >= 2
    assert not config.launch.single_gpu
    with pytest.raises(InvalidArgument, match=r"8\.0 billion .* 2 GB"):
        suggest("math_reasoning", 2, large)


def test_a_suggestion_fits_according_to_its_memory_estimate(small: str, large: str) -> None:
    for model in (small, large):
        for memory in (16, 24, 48, 80):
            try:
                suggestion = suggest("math_reasoning", memory, model)
            except InvalidArgument:
                continue
            assert suggestion.learner.total < memory * 1e9, f"{model} on {memory} GB"
            free = suggestion.config.generator.gpu_memory_utilization * memory * 1e9
            assert suggestion.generator.total < free, f"{model} on {memory} GB: {suggestion.generator.total / 1e9:.1f}"


def test_float32_states_take_sixteen_bytes_per_parameter_and_zero_shards_them(small: str) -> None:
    shape = model_shape(small)

    def states(stage: int, ranks: int) -> float:
        learner = {"zero_stage": stage, "compute_dtype": "float32"}
        parts = learner_memory(run_config(small, learner=learner, launch={"num_learner_ranks": ranks}), shape).parts
        return (parts["weights"] + parts["gradients"] + parts["optimizer"]) / shape.num_parameters

    assert states(0, 1) == 16
    assert states(1, 4) == pytest.approx(4 + 4 + 12 / 4), "stage 1 keeps whole gradients until the step"
    assert states(2, 4) == pytest.approx(4 + 4 / 4 + 12 / 4)
    assert states(3, 4) == pytest.approx(20 / 4)


def test_offloaded_states_use_host_memory(small: str) -> None:
    shape = model_shape(small)
    learner = {"zero_stage": 3, "offload_optimizer": True, "offload_parameters": True}
    memory = learner_memory(run_config(small, learner=learner, launch={"num_learner_ranks": 4}), shape)
    assert {memory.parts[name] for name in ("weights", "gradients", "optimizer")} == {0}
    assert memory.host_total == pytest.approx(shape.num_parameters * (4 + 4 + 12) / 4)


def test_reduce_and_gather_buffers_have_the_sizes_in_the_deepspeed_configuration(small: str) -> None:
    def parts(stage: int, dtype: str) -> dict[str, float]:
        learner = {"zero_stage": stage, "compute_dtype": dtype}
        config = run_config(small, learner=learner, launch={"num_learner_ranks": 2})
        return learner_memory(config, model_shape(small)).parts

    assert parts(2, "bfloat16")["buffers"] == (4 + 4) * _BUCKET_ELEMENTS, "a bucket is reduced while one is filled"
    assert parts(3, "float32")["buffers"] == (4 + 4) * _BUCKET_ELEMENTS, "the bucket and its copy for the scatter"
    assert parts(3, "bfloat16")["buffers"] == (4 + 2 + 4) * _BUCKET_ELEMENTS, "norms and embeddings stay float32"
    assert parts(3, "float32")["gathered weights"] == 4 * model_shape(small).num_parameters
    assert parts(2, "bfloat16")["casts"] == 2 * model_shape(small).num_parameters
    assert parts(3, "bfloat16")["casts"] == 0


def test_the_cache_of_a_token_covers_all_layers(large: str) -> None:
    config = suggest("math_reasoning", 80, large).config
    one = generator_memory(config, model_shape(large), num_sequences=1).parts["key-value cache"]
    per_token = one * config.generator.tensor_parallel_size / config.max_sequence_tokens
    assert per_token == 2 * 32 * 8 * 128 * 2, "two values of two bytes for 8 heads of 128 in 32 layers"


def test_the_cost_model_adds_generation_reward_update_and_other_time(small: str) -> None:
    config, shape = suggest("math_reasoning", 80, small).config, model_shape(small)
    step = step_time(config, shape, H100)
    assert step.synchronous_s == step.generate_s + step.reward_s + step.update_s + step.other_s


def test_sampling_takes_the_time_of_reading_weights_and_cache_once_for_each_token(small: str) -> None:
    """By hand: 4 groups of 8 in flight on 2 engines with seats for 8, completions of 100 tokens after prompts of 50."""
    values = {
        "model": {"path": small},
        "data": {"sources": [{"path": "d.jsonl"}], "max_prompt_tokens": 100},
        "sampling": {"max_completion_tokens": 200},
        "grpo": {"groups_per_step": 4, "group_size": 8, "max_staleness": 0},
        "generator": {"max_num_seqs": 8, "dtype": "bfloat16"},
        "launch": {"num_generators": 2},
    }
    config, shape = parse_config(values), model_shape(small)
    rates = Rates(generate_bytes=1e9, update_flops=1.0, reward_s=0.0, source="", pass_s=0.5)
    cached = 8 * (50 + 50) * 2 * 24 * 2 * 64  # Keys and values of 24 layers with 2 heads of 64.
    pass_s = 2 * (shape.num_parameters + cached) / 1e9 + 0.5
    assert step_time(config, shape, rates).generate_s == pytest.approx(2 * 100 * pass_s), "16 of each engine, 8 at once"
    half = replace(rates, seats_share=0.5)
    pass_s = 2 * (shape.num_parameters + cached / 2) / 1e9 + 0.5
    assert step_time(config, shape, half).generate_s == pytest.approx(4 * 100 * pass_s)
    values["generator"] |= {"tensor_parallel_size": 2}
    pass_s = (shape.num_parameters + cached) / 1e9 + 0.5
    assert step_time(parse_config(values), shape, rates).generate_s == pytest.approx(2 * 100 * pass_s)


def test_an_h100_samples_some_ten_thousand_tokens_a_second_from_a_model_of_8b(large: str) -> None:
    values = {
        "model": {"path": large},
        "data": {"sources": [{"path": "d.jsonl"}], "max_prompt_tokens": 1024},
        "sampling": {"max_completion_tokens": 4096},
        "grpo": {"groups_per_step": 64, "group_size": 8},
        "generator": {"max_num_seqs": 512, "dtype": "bfloat16"},
    }
    sampled = 512 * 2048 / step_time(parse_config(values), model_shape(large), H100).generate_s
    assert 5_000 < sampled < 15_000, f"{sampled:,.0f} tokens/s"


def _run_folder(folder: Path, model: str, num_steps: int) -> Path:
    """Writes the folder of a run with 8 completions per step.

    Sampling takes half of the time, and the first step takes ten times as long as the others.
    """
    values = {
        "model": {"path": model},
        "data": {"sources": [{"path": "d.jsonl"}], "max_prompt_tokens": 20},
        "sampling": {"max_completion_tokens": 40},
        "grpo": {"groups_per_step": 2, "group_size": 4, "max_staleness": 0},
        "reward": {"num_processes": 3},
        "generator": {"max_num_seqs": 16},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    row = {
        "generator_tokens_per_second_step": 30.0, "waiting/generators": 0.5, "usage/generator_seats": 6 / 32,
        "learner_tokens_per_second_step": 50.0,
        "waiting/rewards": 0.9, "time/step": 8.0, "time/training": 4.8, "time/waiting_for_groups": 2.5,
        "val/sequence_lengths": 20.0, "val/num_step_tokens": 4 * 25.0, "val/total_reward_groups": 1.0,
    }  # fmt: skip
    rows = [{name: 10 * value for name, value in row.items()}, {"eval/num_prompts": 3.0}, *[row] * (num_steps - 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    return folder


def test_rates_of_a_run_reproduce_its_step_time(small: str, tmp_path: Path) -> None:
    rates = rates_of_run(_run_folder(tmp_path / "run", small, 5))
    size = model_shape(small).num_parameters
    # 30 tokens/s, while generating half of the time; 6 completions at once then, with 5 + 10 tokens before the next.
    read = 2 * (size + 6 * 15 * 2 * 24 * 2 * 64)
    assert rates.generate_bytes == pytest.approx(read * 60 / 6), "an engine makes ten passes a second"
    assert rates.seats_share == pytest.approx(6 / 8)
    assert rates.update_flops == pytest.approx(6 * size * 50)
    assert rates.reward_s == pytest.approx(0.8 * 3 / 8), "0.8 s of three processes for 8 completions"
    assert (rates.length_share, rates.step_s) == (0.5, pytest.approx(0.7))
    assert (rates.prompt_share, rates.trained_share) == (0.25, 0.5), "prompts of 5 tokens, one group of two trained on"
    config = parse_config(json.loads((tmp_path / "run" / "config.json").read_text()))
    step = step_time(config, model_shape(small), rates)
    assert step.generate_s == pytest.approx(8 * 20 / 60) and step.update_s == pytest.approx(4 * 25 / 50)
    text = suggest("code", 24, small, rates).toml
    assert "run run, 4 steps" in text and "not of your machine" not in text
    assert "not of your machine" in suggest("code", 24, small).toml


def test_a_folder_with_an_incomplete_run_is_refused_as_a_measurement(small: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.json"):
        rates_of_run(tmp_path)
    with pytest.raises(InvalidArgument, match=r"at least 3 .*found: 2"):
        rates_of_run(_run_folder(tmp_path / "run", small, 2))
    folder = _run_folder(tmp_path / "other", small, 5)
    (folder / "metrics.jsonl").write_text('{"time/step": 1.0}\n' * 5)
    with pytest.raises(InvalidArgument, match="metrics are incomplete: 'waiting/generators'"):
        rates_of_run(folder)


def test_mixture_of_experts_models_are_refused_with_the_field(tmp_path: Path) -> None:
    model = _model(tmp_path / "moe", {**LLAMA_8B, "num_local_experts": 8})
    with pytest.raises(InvalidArgument, match="num_local_experts = 8: "):
        suggest("code", 80, model)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"model_type": ', "cannot be read as JSON"),
        ("[]", "contains no JSON object"),
        (json.dumps(LLAMA_8B | {"num_attention_heads": 0}), "does not give the size of the model"),
        (json.dumps(LLAMA_8B | {"num_experts": "many"}), "num_experts = many"),
        ("{}", "does not give the size of the model"),
    ],
)
def test_an_unreadable_model_is_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidArgument, match=reason):
        suggest("math_reasoning", 24, str(tmp_path))
    with pytest.raises(InvalidArgument, match="is empty"):
        suggest("math_reasoning", 24, "")


LLAMA_1B = {**LLAMA_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
            "tie_word_embeddings": True}  # fmt: skip
LLAMA_3B = {**LLAMA_8B, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "head_dim": 128,
            "num_attention_heads": 24, "tie_word_embeddings": True}  # fmt: skip


def test_a_small_gpu_trains_adapters_where_the_whole_model_does_not_fit_and_on_4_bits_at_last(
    tmp_path: Path, small: str
) -> None:
    def chosen(gpu_memory_gb: float, model: str) -> tuple[int, str, float, bool]:
        config = suggest("math_reasoning", gpu_memory_gb, model).config
        learner = config.learner
        return learner.lora.rank, learner.lora.quantization, learner.learning_rate, config.launch.single_gpu

    three = _model(tmp_path / "3b", LLAMA_3B)
    assert chosen(20, small) == (0, "none", 1e-5, True)
    assert chosen(16, _model(tmp_path / "1b", LLAMA_1B)) == (16, "none", 5e-5, True)
    assert chosen(20, three) == (16, "none", 5e-5, True)
    assert chosen(16, three) == (16, "nf4", 5e-5, True)
    assert chosen(80, three)[:2] == (0, "none"), "a large GPU trains the whole model, on several if need be"


def test_a_suggested_advantage_is_the_reward_less_the_mean_of_its_group(small: str) -> None:
    for task in ("math_reasoning", "instruction_following", "code"):
        advantage = suggest(task, 16, small).config.advantage
        assert (advantage.baseline, advantage.scale) == ("group_mean", "none")


def test_adapters_take_sixteen_bytes_of_their_own_parameters_and_the_model_those_of_its_type(small: str) -> None:
    shape = model_shape(small)
    adapters = 24 * 16 * (2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864))

    def states(quantization: str, targets: list[str]) -> float:
        lora = {"rank": 16, "quantization": quantization, "target_modules": targets}
        learner = {"zero_stage": 0, "compute_dtype": "bfloat16", "lora": lora}
        parts = learner_memory(run_config(small, kl={"coef": 0.1}, learner=learner), shape).parts
        assert "reference" not in parts, "the reference is the model without its adapters"
        return parts["weights"] + parts["gradients"] + parts["optimizer"]

    assert num_adapter_weights(LoraConfig(rank=16), shape.linear_layers) == adapters
    assert states("none", ["all-linear"]) == 16 * adapters + 2 * shape.num_parameters
    assert states("none", ["q_proj"]) == 16 * 24 * 16 * (896 + 896) + 2 * shape.num_parameters
    linear = 24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)
    assert states("nf4", ["all-linear"]) == 16 * adapters + 0.5625 * linear + 2 * (shape.num_parameters - linear)


QWEN_15B = QWEN_05B | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                       "num_attention_heads": 12}  # fmt: skip


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
@pytest.mark.parametrize("gpu_memory_gb", [12, 16, 24, 48, 80])
def test_estimates_are_for_the_rows_that_the_learner_chooses_from_the_suggestion(
    tmp_path: Path, gpu_memory_gb: int, kind: str
) -> None:
    model = _model(tmp_path / "m", QWEN_15B | {"model_type": kind})
    suggestion, shape = suggest("math_reasoning", gpu_memory_gb, model), model_shape(model)
    config = suggestion.config
    assert config.learner.pack_tokens is None, "the learner knows its GPU better"
    assert config.learner.gradient_checkpointing in ((None,) if kind == "qwen2" else (None, True))
    rows = fit_rows(config, shape, gpu_bytes=gpu_memory_gb * 1e9)
    settled = config.model_copy(update={"learner": rows.learner})
    assert rows.fits and suggestion.learner == learner_memory(settled, shape), rows.learner
    assert suggestion.step == step_time(settled, shape, H100)
    assert f"rows of {rows.learner.pack_tokens:,} tokens" in suggestion.toml


def test_recomputing_takes_a_third_more_time_if_the_learner_chooses_it(tmp_path: Path) -> None:
    model = _model(tmp_path / "m", QWEN_15B)
    small, large = suggest("code", 44, model), suggest("code", 80, model)
    assert not large.config.learner.gradient_checkpointing and "activations are kept" in large.toml
    assert small.config.learner == large.config.learner and "activations are recomputed" in small.toml
    assert small.step.update_s == pytest.approx(large.step.update_s * 10 / 8), "two further operations beside eight"


def test_an_engine_that_sleeps_and_a_step_take_turns_on_the_memory_of_a_gpu(tmp_path: Path) -> None:
    model = _model(tmp_path / "m", QWEN_15B)
    shape, suggestion = model_shape(model), suggest("math_reasoning", 48, model)
    config, learner = suggestion.config, suggestion.learner
    assert config.launch.single_gpu and config.generator.sleep_while_training
    awake = config.generator.gpu_memory_utilization * 48e9
    free = 0.9 * 48e9 - RUNTIME_BYTES
    assert awake + learner.between_steps <= free, "the engine samples beside weights and optimizer"
    assert learner.total + RUNTIME_BYTES <= free, "a sleeping engine keeps its runtime"
    assert awake + learner.total > free, "both at once would not fit"
    alert = config.model_copy(update={"generator": config.generator.model_copy(update={"sleep_while_training": False})})
    assert not fit_rows(alert, shape, gpu_bytes=48e9).fits


def test_a_run_whose_learner_chose_to_recompute_is_measured_with_that_work(tmp_path: Path, small: str) -> None:
    folder = _run_folder(tmp_path / "run", small, 5)
    kept = rates_of_run(folder).update_flops
    (folder / "logs").mkdir()
    event = {"event": "model loaded", "pack_tokens": 4096, "gradient_checkpointing": True}
    other = {"event": "the step is done", "text": '"event": "model loaded"'}
    (folder / "logs" / "learner.log").write_text("".join(json.dumps(line) + "\n" for line in ({}, event, other)))
    assert rates_of_run(folder).update_flops == pytest.approx(kept * 8 / 6)
