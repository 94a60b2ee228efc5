"""Tests of real-world sources: wrapped scripts, notebooks, whole configurations."""

import json
from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.translate import SYSTEMS, Translation, translate
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings
from tests.support.translations import BASE as MODEL_AND_DATA
from tests.support.translations import ROLL_GUIDE, config_of, parsed, translate_file, translate_values

BASE = (*MODEL_AND_DATA, "run.num_steps=10")


DAPO = """set -xeuo pipefail
n=16
NNODES=${NNODES:-2}
length=$((1024 * 8))
%s \\
    data.train_files="${HOME}/train.parquet" data.max_response_length=${length} \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.n=${n} algorithm.adv_estimator=grpo \\
    +actor_rollout_ref.model.override_config.attention_dropout=0. \\
    trainer.total_training_steps=20 trainer.nnodes="${NNODES}" $@%s
"""


@pytest.mark.parametrize("system", ["trl", "unsloth"])
def test_keywords_of_a_configuration_class_are_read_like_its_flags(system: str) -> None:
    keywords = ("num_generations=8", "loss_type=dr_grpo", "max_completion_length=64")
    flags = ("--num_generations", "8", "--loss_type=dr_grpo", "--max-completion-length", "64")
    one, other = (
        translate(SYSTEMS[system], read_settings(SYSTEMS[system], arguments), overrides=BASE)
        for arguments in (keywords, flags)
    )
    assert one.toml == other.toml
    assert parsed(one).grpo.group_size == 8
    with pytest.raises(InvalidArgument, match="'8'"):
        read_settings(SYSTEMS[system], ["8"])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("python3 -m verl.trainer.main_ppo", " 2>&1 | tee log.txt"),
        ("ray job submit --no-wait --working-dir . -- python3 -m recipe.dapo.main_dapo", ""),
        ("ray job submit -- python3 -m recipe.dapo.src.main_dapo", ""),
        ("uv run python recipe/dapo/main_dapo.py --config-path=config --config-name='dapo_trainer'", ""),
        ("python3 -m verl.trainer.main_ppo --config-path config --config-name ppo_megatron_trainer.yaml", ""),
    ],
)
def test_the_trainer_of_verl_is_found_behind_its_launchers(start: str, end: str, tmp_path: Path) -> None:
    config = parsed(translate_file("verl", tmp_path / "run.sh", DAPO % (start, end)))
    assert (config.grpo.group_size, config.sampling.max_completion_tokens) == (16, 8192)
    assert (config.run.num_steps, config.launch.num_learner_ranks) == (20, 16)


def test_a_custom_configuration_name_of_verl_is_refused(tmp_path: Path) -> None:
    script = DAPO % ("python3 -m verl.trainer.main_ppo --config-name=mine", "")
    (refusal,) = translate_file("verl", tmp_path / "run.sh", script).blocking
    assert (refusal.name, "translate that file" in refusal.reason) == ("--config-name", True)


def test_a_resolved_configuration_of_verl_is_read_in_full(tmp_path: Path) -> None:
    """Hydra's file in the folder of a run contains every field, most of them at values that have no effect."""
    text = """
actor_rollout_ref:
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}
    optim: {_target_: x, lr: 2e-6, optimizer: AdamW, warmup_style: null, override_optimizer_config: null}
    profiler: {enable: false, tool_config: {npu: {level: level0}}}
    qat: {enable: false, mode: w4a16}
    clip_ratio: 0.2
  rollout:
    n: 4
    name: vllm
    trace: {backend: null}
    multi_turn: {enable: false, format: hermes}
    prompt_length: ${oc.select:data.max_prompt_length,512}
  model: {path: org/model, override_config: {}, lora: {rank: 0, alpha: 32}, mtp: {enable: false, method: mtp}}
algorithm: {adv_estimator: grpo, rollout_correction: {rollout_is: null, loss_type: ppo_clip}, use_pf_ppo: false}
data: {train_files: a.parquet, apply_chat_template_kwargs: {}}
reward: {num_workers: 8, reward_model: {enable: false, n_gpus_per_node: 8}, reward_manager: {name: naive}}
reward_model: {enable: null, reward_manager: null, num_workers: null}
trainer: {total_training_steps: 5, use_v1: true, v1: {trainer_mode: sync, sync: {}}}
global_profiler: {tool: null}
transfer_queue: {enable: false}
distillation: {enabled: false, distillation_loss: {topk: 32}}
"""
    translation = translate_file("verl", tmp_path / "config.yaml", text)
    assert (parsed(translation).grpo.group_size, parsed(translation).learner.learning_rate) == (4, 2e-6)
    assert any(note.startswith("_target_ names 2 classes") for note in translation.notes)


def test_a_missing_value_blocks_only_if_its_field_affects_training(tmp_path: Path) -> None:
    script = (
        "python open_instruct/grpo_fast.py --model_name_or_path m --run_name x_$(date) --oe_eval_tasks $EVALS "
        "--verbose $VERBOSE --learning_rate $LR\n"
    )
    translation = translate_file("open-instruct", tmp_path / "run.sh", script)
    assert [refusal.name for refusal in translation.blocking] == ["learning_rate"]
    assert any(note.startswith("verbose has no value") for note in translation.notes)
    answered = translate_file("open-instruct", tmp_path / "run.sh", script, overrides=["learner.learning_rate=1e-6"])
    assert parsed(answered).learner.learning_rate == 1e-6


def test_a_semicolon_inside_a_value_does_not_end_the_command(tmp_path: Path) -> None:
    script = (
        'python mason.py --gpus 8 -- python open_instruct/grpo_fast.py --stop_strings "a;b" --model_name_or_path m\n'
    )
    config = parsed(translate_file("open-instruct", tmp_path / "run.sh", script))
    assert (config.sampling.stop_strings, config.model.path) == (["a;b"], "m")


def test_a_whole_command_in_one_quoted_word_is_read(tmp_path: Path) -> None:
    script = (
        'LR=1e-6\nsrun bash -c "cd x && python open_instruct/grpo_fast.py --model_name_or_path m --learning_rate $LR"\n'
    )
    assert parsed(translate_file("open-instruct", tmp_path / "run.sh", script)).learner.learning_rate == 1e-6


def test_a_guess_is_noted(tmp_path: Path) -> None:
    script = "N=8\nif [ -d /data ]; then N=16; fi\npython grpo_fast.py --model_name_or_path m --num_unique_prompts $N\n"
    notes = translate_file("open-instruct", tmp_path / "run.sh", script).notes
    assert any(note.startswith("N = 16 ") for note in notes), notes


TRL_FLAGS = "--model_name_or_path m --dataset_name org/data --max_steps 10"


@pytest.mark.parametrize(
    "start",
    [
        "trl vllm-serve --model m &\nCUDA_VISIBLE_DEVICES=1 trl grpo",
        "accelerate launch --config_file zero3.yaml -m trl.scripts.grpo",
        "accelerate launch --mixed_precision bf16 src/open_r1/grpo.py",
    ],
)
def test_the_trainer_of_trl_is_found_behind_its_launchers(start: str, tmp_path: Path) -> None:
    config = parsed(translate_file("trl", tmp_path / "run.sh", f"{start} {TRL_FLAGS} 2>&1 | tee log\n"))
    assert (config.run.num_steps, config.data.sources[0].messages_column) == (10, "prompt")


def test_flags_take_precedence_over_the_settings_file_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model_name_or_path: m\ndataset_name: d\nmax_steps: 5\nlearning_rate: 1.0e-5\n")
    config = parsed(translate_file("trl", tmp_path / "run.sh", "trl grpo --max_steps 7 --config c.yaml\n"))
    assert (config.run.num_steps, config.learner.learning_rate) == (7, 1e-5)


def test_processes_of_the_launcher_multiply_the_batches_of_trl(tmp_path: Path) -> None:
    script = f"accelerate launch --num_processes=4 grpo.py {TRL_FLAGS} --gradient_accumulation_steps 2\n"
    config = parsed(translate_file("trl", tmp_path / "run.sh", script))
    assert (config.grpo.groups_per_step, config.grpo.num_mini_batches) == (8, 1), "4 x 8 x 2 completions, 8 per group"
    assert config.launch.num_learner_ranks == 4


def test_python_is_read_wherever_its_values_are_known(tmp_path: Path) -> None:
    text = """
base: str = "org/model"
def main(script_args):
    run = "other"
run = "first"
args = GRPOConfig(
    output_dir=f"out/{run}-{2 * 4}", learning_rate=script_args.lr, run_name=script_args.name,
    bf16=is_bfloat16_supported(), fp16=not is_bfloat16_supported(), max_steps=10 * 2,
    model_init_kwargs=dict(torch_dtype=torch.bfloat16, attn_implementation="sdpa"), hub_token="hf_1234",
)
trainer = GRPOTrainer(model=base, reward_funcs=[score], args=args, peft_config=LoraConfig(r=8))
"""
    translation = translate_file("trl", tmp_path / "train.py", text, overrides=BASE[1:2])
    values = translation.values
    assert (values["model"]["path"], values["learner"]["attention"]) == ("org/model", "sdpa")
    names = {refusal.name for refusal in translation.blocking}
    assert names == {"learning_rate", "run_name"}
    assert values["learner"]["lora"]["rank"] == 8
    assert "hf_1234" not in "".join(map(str, [*translation.notes, *translation.refusals])), "the secret is repeated"


NOTEBOOK = """from unsloth import FastLanguageModel
length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen3-4B-Base", max_seq_length=length, gpu_memory_utilization=0.7, dtype=None%s)
args = GRPOConfig(
    max_steps=10, num_generations=4, per_device_train_batch_size=1, gradient_accumulation_steps=1,
    vllm_sampling_params=SamplingParams(top_k=-1, seed=3407, stop=[tokenizer.eos_token]%s), %s)
trainer = GRPOTrainer(model=model, args=args)
"""


def _notebook(path: Path, *parts: str) -> Translation:
    lines = (NOTEBOOK % parts).splitlines(keepends=True)
    cells = [
        {"cell_type": "markdown", "source": ["# Train"]},
        {"cell_type": "code", "source": ["%%capture\n", "!pip install unsloth"]},
        {"cell_type": "code", "source": lines},
    ]
    return translate_file("unsloth", path / "train.ipynb", json.dumps({"cells": cells}), overrides=BASE[1:2])


def test_a_notebook_of_unsloth_is_read(tmp_path: Path) -> None:
    translation = _notebook(tmp_path, "", "", "")
    config = parsed(translation)
    assert (config.model.path, config.generator.max_model_len) == ("unsloth/Qwen3-4B-Base", 2048)
    assert config.generator.gpu_memory_utilization == 0.7
    assert (config.grpo.group_size, config.grpo.groups_per_step) == (4, 1), "Unsloth makes the batch a whole group"
    assert any("num_generations (4)" in note for note in translation.notes)


def test_calls_of_unsloth_outside_its_configuration_are_not_dropped(tmp_path: Path) -> None:
    assert parsed(_notebook(tmp_path, "", ", min_p=0.1", "")).sampling.min_p == 0.1
    notes = _notebook(tmp_path, ", load_in_4bit=True", "", "").notes
    assert any("from_pretrained.load_in_4bit = true: " in note for note in notes), notes
    adapters = ")\nmodel = FastLanguageModel.get_peft_model(model, r=32"
    assert parsed(_notebook(tmp_path, adapters, "", "")).learner.lora.rank == 32


def test_unsloth_uses_the_paper_values_of_an_explicit_loss(tmp_path: Path) -> None:
    config = parsed(_notebook(tmp_path, "", "", 'loss_type="dapo"'))
    assert (config.loss.clip_high, config.grpo.mask_truncated_completions) == (0.28, True)
    config = parsed(_notebook(tmp_path, "", "", ""))
    assert (config.loss.clip_high, config.grpo.mask_truncated_completions) == (0.2, False), "the defaults of TRL"
    assert parsed(_notebook(tmp_path, "", "", 'loss_type="cispo"')).loss.cispo_cap == 5.0


def test_a_file_that_is_not_a_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"x\.ipynb .*notebook"):
        translate_file("unsloth", tmp_path / "x.ipynb", "{}")


ROLL = """
defaults: [../config/deepspeed_zero3_cpuoffload@_here_]
exp_name: q-${pg_variant}
pg_variant: ppo
adv_estimator: grpo
pretrain: &base org/model
reward_pretrain: *base
response_length: 64
num_return_sequences_in_group: 8
tracker_kwargs: {api_key: secret-key-1}
actor_train: &train
  worker_cls: roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker
  pg_variant: topr
  model_args: {flash_attn: fa2}
  data_args: {file_name: [a.jsonl], domain_interleave_probs: {math_rule: 1.0}, interleave_probs: "1.0"}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero%s}"}
reference: *train
"""


@pytest.mark.parametrize(
    ("name", "sharding"),
    [("", (0, False, False)), ("2", (2, False, False)), ("3", (3, False, False)), ("3_cpuoffload", (3, True, True))],
)
def test_deepspeed_files_of_roll_are_known_by_name(name: str, sharding: tuple[int, bool, bool], tmp_path: Path) -> None:
    translation = translate_file("roll", tmp_path / "c.yaml", ROLL % name)
    learner = parsed(translation).learner
    assert (learner.zero_stage, learner.offload_optimizer, learner.offload_parameters) == sharding
    assert (parsed(translation).loss.objective, learner.attention) == ("topr", "auto")
    assert "secret-key-1" not in "".join(translation.notes)


def test_model_parallel_ranks_count_as_one_data_parallel_rank() -> None:
    """An optimizer step of ROLL takes per_device x accumulation x data-parallel ranks samples."""
    strategy = "strategy_args.strategy_config."
    values = {
        "device_mapping": "list(range(0,16))", "training_args.gradient_accumulation_steps": 32,
        "training_args.per_device_train_batch_size": 1, "strategy_args.strategy_name": "megatron_train",
        f"{strategy}tensor_model_parallel_size": 2, f"{strategy}pipeline_model_parallel_size": 2,
    }  # fmt: skip
    config = config_of("roll", ROLL_GUIDE | {f"actor_train.{name}": value for name, value in values.items()})
    assert config.grpo.num_mini_batches == 4, "512 samples by 32 x 16 / 4"


def test_a_reward_model_judges_every_row() -> None:
    verl = {"reward_model.enable": True, "algorithm.adv_estimator": "grpo"}
    settings = Settings({"reward_model_name_or_path": "org/rm", "dataset_name": "d", "max_steps": 1})
    trl = translate(SYSTEMS["trl"], settings)
    for translation in (translate_values("verl", verl | {"reward_model.model.path": "org/rm"}), trl):
        assert translation.values["reward"]["model"] == {"path": "org/rm"}
    assert trl.values["data"]["sources"][0]["verifier"] == "reward_model"
    assert "must name the model" in translate_values("verl", verl).blocking[0].reason


def test_a_table_on_the_command_line_must_be_json() -> None:
    flags = [*TRL_FLAGS.split(), "--lr_scheduler_type", "cosine_with_min_lr"]
    settings = read_settings(SYSTEMS["trl"], [*flags, "--lr_scheduler_kwargs", '{"min_lr_rate": 0.2}'])
    assert parsed(translate(SYSTEMS["trl"], settings)).learner.lr_min_ratio == 0.2
    settings = read_settings(SYSTEMS["trl"], [*flags, "--lr_scheduler_kwargs", "min_lr_rate=0.2"])
    assert "as JSON" in translate(SYSTEMS["trl"], settings).blocking[0].reason


def test_a_refusal_causes_no_other_refusal() -> None:
    values = {"loss_type": "ours", "epsilon_high": 0.3, "top_k": None, "max_steps": 1}
    translation = translate(SYSTEMS["trl"], Settings(values), overrides=BASE)
    assert [refusal.name for refusal in translation.blocking] == ["loss_type"]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_a_nonfinite_number_is_refused_with_its_field(number: str) -> None:
    for system, name in (("open-instruct", "warmup_ratio"), ("trl", "save_steps"), ("roll", "async_generation_ratio")):
        translation = translate(SYSTEMS[system], Settings({name: number}), overrides=BASE)
        reasons = {refusal.name: refusal.reason for refusal in translation.blocking}
        assert "finite" in reasons[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "a: &a\n  b: *a\n"),
        ("c.yaml", "a: &a [*a]\n"),
        ("c.yaml", "- 1\n"),
        ("c.py", f"GRPOConfig(max_steps={'+'.join(['1'] * 5000)})\n"),
        ("c.py", "GRPOConfig("),
        ("c.sh", 'trl grpo --x "unclosed\n'),
    ],
)
def test_an_unreadable_source_is_refused_without_a_crash(name: str, text: str, tmp_path: Path) -> None:
    try:
        translation = translate_file("trl", tmp_path / name, text)
    except InvalidArgument:
        return
    assert translation.blocking


def test_experiments_of_open_instruct_are_read_with_their_parts(tmp_path: Path) -> None:
    text = """
def main():
    data = DatasetConfig(dataset_mixer_list=["a/b", "1.0"], max_prompt_token_length=64)
    held = DatasetConfig(dataset_mixer_list=["a/b", "16"], dataset_mixer_list_splits=["train"])
    args = Args(exp_name="x", beta=0.01, response_length=64, pack_length=128, num_learners_per_node=[2])
    ExperimentConfig(args=args, model_config=ModelConfig(model_name_or_path="m"), dataset_config=data,
                     tokenizer_config=TokenizerConfig(chat_template_name="tulu"), eval_dataset_config=held)
"""
    config = parsed(translate_file("open-instruct", tmp_path / "x.py", text))
    assert (config.kl.coef, config.model.path, config.model.chat_template) == (0.01, "m", "tulu")
    assert (config.data.sources[0].dataset, config.evaluation.num_prompts) == ("a/b", 16)
    assert config.launch.num_learner_ranks == 2


def test_a_flag_may_have_the_value_false_as_text() -> None:
    for value in ("false", "False"):
        translation = _translate_flags("trl", *TRL_FLAGS.split(), "--push_to_hub", value)
        assert not [refusal for refusal in translation.refusals if refusal.name == "push_to_hub"]
    pushed = _translate_flags("trl", *TRL_FLAGS.split(), "--push_to_hub", "true")
    assert [refusal.name for refusal in pushed.refusals if refusal.name == "push_to_hub"] == ["push_to_hub"]


def _translate_flags(system: str, *flags: str) -> Translation:
    return translate(SYSTEMS[system], read_settings(SYSTEMS[system], flags), overrides=BASE)


def test_a_python_file_is_read_without_being_run(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import does_not_exist\nlength = 1024\nargs = GRPOConfig(max_steps=5 * 10,\n"
        "    max_completion_length=length - 256, lr_scheduler_type='cosine', report_to=['wandb', 'tensorboard'])\n"
    )
    values = read_settings(SYSTEMS["trl"], [str(path)]).values
    assert (values["max_steps"], values["max_completion_length"]) == (50, 768)
    config = config_of("trl", values)
    assert (config.tracking.wandb, config.tracking.tensorboard) == ("online", True)
    path.write_text("args = GRPOConfig(max_steps=len(data), logging_steps=len(data))\n")
    translation = translate(SYSTEMS["trl"], read_settings(SYSTEMS["trl"], [str(path)]), overrides=MODEL_AND_DATA)
    (refusal,) = (refusal for refusal in translation.blocking if refusal.name == "max_steps")
    assert "line 1, len(data), " in refusal.reason
    assert any(note.startswith("logging_steps has no value") for note in translation.notes), (
        "the field has no effect on training"
    )


def test_json_and_yaml_give_the_same_settings(tmp_path: Path) -> None:
    values = {"max_steps": 3, "learning_rate": 1e-5}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("max_steps: 3\nlearning_rate: 1e-5\n")
    first, second = (read_settings(SYSTEMS["trl"], [str(tmp_path / name)]).values for name in ("a.json", "a.yaml"))
    assert config_of("trl", first) == config_of("trl", second)


@pytest.mark.parametrize(
    ("flags", "name"), [(["--beta"], "beta"), (["--learning_rate"], "learning_rate"), (["--exp_name"], "exp_name")]
)
def test_a_flag_that_needs_a_value_and_has_none_is_refused(flags: list[str], name: str) -> None:
    translation = translate(
        SYSTEMS["open-instruct"], read_settings(SYSTEMS["open-instruct"], ["--model_name_or_path", "m", *flags])
    )
    (refusal,) = translation.blocking
    assert refusal.name == name and "has no value" in str(refusal)


def test_variables_of_the_environment_that_a_script_exports_are_named_unless_its_words_use_them(tmp_path: Path) -> None:
    script = (
        "export VLLM_ATTENTION_BACKEND=XFORMERS MODEL=/m/base\nCUDA_VISIBLE_DEVICES=0 python3 -m "
        "verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d.parquet "
        "actor_rollout_ref.model.path=$MODEL\n"
    )
    notes = translate_file("verl", tmp_path / "run.sh", script).notes
    (note,) = (note for note in notes if "environment variables" in note)
    assert "(VLLM_ATTENTION_BACKEND, CUDA_VISIBLE_DEVICES)" in note, note


def test_variables_that_the_translation_reads_are_not_named_as_left_out(tmp_path: Path) -> None:
    script = (
        "export HOSTED_VLLM_API_BASE=http://judge:8000/v1\npython mason.py --env NCCL_DEBUG=INFO -- "
        "python open_instruct/grpo_fast.py --model_name_or_path m\n"
    )
    notes = translate_file("open-instruct", tmp_path / "run.sh", script).notes
    (note,) = (note for note in notes if "environment variables" in note)
    assert "(NCCL_DEBUG)" in note, note
