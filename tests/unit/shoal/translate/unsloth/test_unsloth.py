"""Tests of the translation of Unsloth's settings."""

from pathlib import Path

import pytest

from shoal.translate import SYSTEMS, Translation, translate
from shoal.translate.sources.settings import Settings
from tests.support.translations import BASE, config_of, parsed, translate_file

NOTEBOOK = """
rank = 32
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Llama-3.1-8B", load_in_4bit=True{more})
model = FastLanguageModel.get_peft_model(model, r=rank, target_modules=["q_proj", "k_proj"], lora_alpha=rank)
args = GRPOConfig({lengths}max_steps=5, per_device_train_batch_size=1, num_generations=4)
"""


def notebook(folder: Path, more: str = "", *, before: str = "", lengths: str = "") -> Translation:
    text = before + NOTEBOOK.format(more=more, lengths=lengths)
    return translate_file("unsloth", folder / "notebook.py", text, overrides=BASE[1:])


def test_the_defaults_of_unsloth_differ_from_those_of_trl() -> None:
    config = config_of("unsloth", {"max_steps": 100, "max_seq_length": 1024, "max_completion_length": 200})
    assert (config.learner.learning_rate, config.learner.weight_decay, config.run.seed) == (5e-5, 0.001, 3407)
    assert (config.learner.warmup_ratio, config.correction.weight) == (0.1, "none")
    assert (config.data.max_prompt_tokens, config.generator.max_model_len) == (824, 1024)
    assert config_of("unsloth", {"max_steps": 9, "loss_type": "bnpo"}).kl.coef == 0.001


def test_adapters_of_a_notebook_are_translated(tmp_path: Path) -> None:
    result = notebook(tmp_path)
    lora = parsed(result).learner.lora
    assert (lora.rank, lora.alpha, lora.target_modules, lora.quantization) == (32, 32, ["q_proj", "k_proj"], "nf4")


def test_a_model_in_fp8_is_not_yet_available(tmp_path: Path) -> None:
    result = notebook(tmp_path, ", load_in_fp8=True")
    assert [refusal.name for refusal in result.blocking] == ["from_pretrained.load_in_fp8"]


def test_lengths_that_a_notebook_measures_share_its_context(tmp_path: Path) -> None:
    before = "longest = int(quantile(lengths, 0.9))\nprompt = longest + 1\n"
    lengths = "max_prompt_length=prompt, max_completion_length=2048 - prompt, "
    result = notebook(tmp_path, ", max_seq_length=2048", before=before, lengths=lengths)
    config = parsed(result)
    assert (config.data.max_prompt_tokens, config.sampling.max_completion_tokens) == (512, 1536)
    assert any("measures its prompts" in note for note in result.notes)
    result = notebook(tmp_path, before=before, lengths="max_prompt_length=prompt, ")
    assert [refusal.name for refusal in result.blocking] == ["max_prompt_length"], "nothing bounds it"


def test_a_chat_template_by_name_is_refused(tmp_path: Path) -> None:
    result = notebook(tmp_path, before='tokenizer = get_chat_template(tokenizer, chat_template="gemma-3")')
    assert [refusal.name for refusal in result.blocking] == ["get_chat_template.chat_template"]


@pytest.mark.parametrize("name", ["unsloth/m-7b-bnb-4bit", "unsloth/m-7b-unsloth-bnb-4bit", "unsloth/m-7b"])
def test_a_copy_in_4_bits_stands_for_its_whole_model(name: str) -> None:
    settings = Settings({"from_pretrained.model_name": name, "get_peft_model.r": 8, "max_steps": 1})
    translation = translate(SYSTEMS["unsloth"], settings, overrides=['data.sources=[{path = "d.jsonl"}]'])
    assert translation.values["model"]["path"] == "unsloth/m-7b"
    assert translation.values["learner"]["lora"]["quantization"] == "nf4"
    assert any("a 4-bit copy" in note for note in translation.notes) == name.endswith("4bit")
