"""Tokenizers that come with Python code."""

import logging
from pathlib import Path

import pytest

from shoal.config.tables.model import ModelConfig
from shoal.errors import InvalidArgument
from shoal.models.model_folder import load_tokenizer
from tests.support.tiny_model import add_code, make_tiny_model

pytest.importorskip("torch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return add_code(make_tiny_model(tmp_path / "tokenizer_with_code"), tmp_path / "ran")


def test_the_code_of_a_tokenizer_does_not_run_by_default(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"model\.path: .* trust_remote_code "):
        load_tokenizer(ModelConfig(path=str(folder)))
    assert not (tmp_path / "ran").exists(), "the code ran although it is not trusted"


def test_the_code_of_a_trusted_tokenizer_runs_with_a_warning_that_names_it(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(ModelConfig(path=str(folder), trust_remote_code=True))
    assert type(tokenizer).__name__ == "OwnTokenizer" and (tmp_path / "ran").exists()
    [record] = [record for record in caplog.records if "trust_remote_code" in record.getMessage()]
    assert (record.folder, record.files) == (str(folder), ["modeling_own.py", "tokenization_own.py"])


def test_a_tokenizer_that_writes_conversations_by_its_own_method_needs_a_template_by_name(folder: Path) -> None:
    with (folder / "tokenization_own.py").open("a") as file:
        file.write("    def apply_chat_template(self, *args, **options):\n        return 'as nobody else does'\n")
    own = {"path": str(folder), "trust_remote_code": True}
    with pytest.raises(InvalidArgument, match=r"^model\.chat_template .* OwnTokenizer"):
        load_tokenizer(ModelConfig(**own))
    assert load_tokenizer(ModelConfig(**own, chat_template="simple")).chat_template
