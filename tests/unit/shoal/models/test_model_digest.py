"""A model's digests change with anything that it is loaded from."""

import json
import os
from pathlib import Path

import pytest

from shoal.models import model_digest
from shoal.models.model_digest import model_digests

HEADER = json.dumps({"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()


def write_model(folder: Path, weights: bytes = b"\0" * 8, header: bytes = HEADER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("words")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return folder


def test_each_file_that_a_model_is_loaded_from_has_a_digest(tmp_path: Path) -> None:
    before = model_digests(write_model(tmp_path))
    assert sorted(before) == ["config.json", "model.safetensors", "tokenizer.json"]
    (tmp_path / "README.md").write_text("other words")
    assert model_digests(tmp_path) == before
    for name in before:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content + b" ")
        now = model_digests(tmp_path)
        assert [each for each in before if now[each] != before[each]] == [name]
        (tmp_path / name).write_bytes(content)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat_template.jinja" in model_digests(tmp_path)


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    assert model_digests(folder) == {"revision": "c0ffee"}


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_digest, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(model_digest, "_NUM_BLOCKS", 4)
    monkeypatch.setattr(model_digest, "_BLOCK_BYTES", 16)
    weights = bytearray(os.urandom(4096))
    before = model_digests(write_model(tmp_path, bytes(weights)))
    assert before["model.safetensors"].startswith("sampled-")
    assert not before["config.json"].startswith("sampled-"), "small files are read whole"
    assert model_digests(write_model(tmp_path, bytes(weights))) == before
    other_name = HEADER.replace(b'"a"', b'"b"')
    for what, changed in {
        "every value": write_model(tmp_path / "1", bytes(value ^ 1 for value in weights)),
        "the last value": write_model(tmp_path / "2", bytes(weights[:-1]) + bytes([weights[-1] ^ 1])),
        "a name": write_model(tmp_path / "3", bytes(weights), other_name),
        "the size": write_model(tmp_path / "4", bytes(weights) + b"\0"),
    }.items():
        assert model_digests(changed)["model.safetensors"] != before["model.safetensors"], f"{what} is not noticed"
