"""The files beside the weights of an export are the source's own, field by field, but for what training changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.errors import InvalidArgument
from tests.support.plain_export import export_trained
from tests.support.published_models import CONFIGS, make_published_model
from tests.support.tiny_model import CHAT_TEMPLATE, END_OF_TEXT, IM_END, add_code, make_tiny_model

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}!"


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def changed_files(source: Path, folder: Path) -> set[str]:
    """Returns the names of files that differ from the source's, or are in one folder alone; without the weights."""
    found = [{path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} for place in (source, folder)]
    return {name for name, _ in found[0].items() ^ found[1].items()} - {"model.safetensors"}


@pytest.mark.parametrize("family", CONFIGS)
def test_all_files_but_the_weights_are_those_of_the_source(tmp_path: Path, family: str) -> None:
    source = make_published_model(tmp_path / "source", family)
    export_trained(source, tmp_path / "model", moved_by=0.05)
    assert changed_files(source, tmp_path / "model") == set()


def test_a_configuration_with_values_that_json_has_not_is_copied_as_it_is(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    text = json.dumps(read(source / "config.json") | {"time_step_limit": [0.0, float("inf")]})
    (source / "config.json").write_text(text)
    export_trained(source, tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == text


@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja", "both", "nowhere"])
def test_the_chat_template_of_the_run_stands_where_the_source_has_its_own(tmp_path: Path, place: str) -> None:
    from transformers import AutoTokenizer

    source = make_published_model(tmp_path / "source", "llama3")
    values = read(source / "tokenizer_config.json")
    if place in ("chat_template.jinja", "both"):
        (source / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    if place in ("chat_template.jinja", "nowhere"):
        del values["chat_template"]
    (source / "tokenizer_config.json").write_text(json.dumps(values))
    export_trained(source, tmp_path / "model", chat_template=TEMPLATE)
    written = [read(tmp_path / "model" / "tokenizer_config.json").pop("chat_template", None)]
    if (tmp_path / "model" / "chat_template.jinja").is_file():
        written.append((tmp_path / "model" / "chat_template.jinja").read_text())
    assert set(written) - {None} == {TEMPLATE}, written
    assert len(set(written) - {None}) == 1 and len([text for text in written if text]) == 1 + (place == "both")
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == TEMPLATE
    rest = read(tmp_path / "model" / "tokenizer_config.json")
    assert {**rest, "chat_template": None} == {**values, "chat_template": None}


def test_a_tokenizer_of_another_folder_is_the_one_that_is_exported(tmp_path: Path) -> None:
    source, other = make_published_model(tmp_path / "source", "llama3"), tmp_path / "other"
    shutil.copytree(source, other)
    (other / "tokenizer_config.json").write_text(json.dumps(read(other / "tokenizer_config.json") | {"mine": True}))
    (other / "added_tokens.json").write_text("{}")
    export_trained(source, tmp_path / "model", tokenizer=str(other))
    assert changed_files(source, tmp_path / "model") == {"tokenizer_config.json", "added_tokens.json"}
    assert changed_files(other, tmp_path / "model") == set()


def test_a_token_that_ended_completions_ends_generation_too(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "llama3")
    (own,) = read(source / "generation_config.json")["eos_token_id"]
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": 7, "temperature": 0.7}))
    export_trained(source, tmp_path / "model")
    assert read(tmp_path / "model" / "generation_config.json") == {"eos_token_id": [7, own], "temperature": 0.7}
    assert changed_files(source, tmp_path / "model") == {"generation_config.json"}


def test_the_token_with_which_the_chat_template_ends_an_answer_ends_generation_too(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    end = read(source / "config.json")["eos_token_id"]
    for name in ("config.json", "generation_config.json"):
        (source / name).write_text(json.dumps(read(source / name) | {"eos_token_id": 7}))
    values = read(source / "tokenizer_config.json")
    (source / "tokenizer_config.json").write_text(json.dumps(values | {"eos_token": END_OF_TEXT}))
    export_trained(source, tmp_path / "model", chat_template="chatml")
    assert {7, end} <= set(read(tmp_path / "model" / "generation_config.json")["eos_token_id"])


def test_files_of_a_processor_travel_and_what_is_not_the_models_does_not(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "gemma3")
    for name in ("preprocessor_config.json", "processor_config.json", "trainer_state.json", "notes.md", "secrets.txt"):
        (source / name).write_text("{}")
    export_trained(source, tmp_path / "model")
    assert changed_files(source, tmp_path / "model") == {"trainer_state.json", "notes.md", "secrets.txt"}


def test_templates_by_name_travel_unless_the_run_has_one_of_its_own(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "llama3")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)
    export_trained(source, tmp_path / "model")
    assert (tmp_path / "model" / "additional_chat_templates" / "tool_use.jinja").read_text() == TEMPLATE
    export_trained(source, tmp_path / "own", chat_template=TEMPLATE)
    assert not (tmp_path / "own" / "additional_chat_templates").exists()


def test_code_travels_if_it_is_trusted_and_else_nothing_refers_to_it(tmp_path: Path) -> None:
    source = add_code(make_tiny_model(tmp_path / "source"), tmp_path / "it-ran")
    export_trained(source, tmp_path / "model", trust_remote_code=True)
    assert changed_files(source, tmp_path / "model") == set()
    for name in ("config.json", "tokenizer_config.json"):
        own = {"model_type": "llama", "tokenizer_class": "PreTrainedTokenizerFast"}
        values = read(source / name)
        (source / name).write_text(json.dumps(values | {key: own[key] for key in own.keys() & values.keys()}))
    export_trained(source, tmp_path / "plain")
    left_out = changed_files(source, tmp_path / "plain")
    assert left_out == {"modeling_own.py", "tokenization_own.py", "config.json", "tokenizer_config.json"}
    for name in ("config.json", "tokenizer_config.json"):
        assert read(source / name).keys() - read(tmp_path / "plain" / name).keys() == {"auto_map"}


def test_code_of_two_folders_under_one_name_is_refused(tmp_path: Path) -> None:
    source = add_code(make_tiny_model(tmp_path / "source"), tmp_path / "it-ran")
    other = shutil.copytree(source, tmp_path / "other")
    (other / "tokenization_own.py").write_text((other / "tokenization_own.py").read_text() + "# another\n")
    with pytest.raises(InvalidArgument, match=r"model\.tokenizer: .*tokenization_own\.py"):
        export_trained(source, tmp_path / "model", trust_remote_code=True, tokenizer=str(other))


def test_an_output_layer_that_was_trained_apart_is_not_said_to_be_tied(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    source = make_published_model(tmp_path / "source", "llama3")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    lm = export_trained(source, tmp_path / "model", moved_by=0.05)
    assert changed_files(source, tmp_path / "model") == {"config.json"}
    expected = read(source / "config.json") | {"tie_word_embeddings": False}
    assert read(tmp_path / "model" / "config.json") == expected
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.lm_head.weight, lm.lm_head.weight)
    assert read(tmp_path / "model" / "tokenizer_config.json")["eos_token"] == IM_END
