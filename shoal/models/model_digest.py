"""Digests of a model's files. With these digests a run notices that its model has changed."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FILES = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*.safetensors", "pytorch_model*.bin"),
)
_WHOLE_BYTES = 1 << 29
"""The largest model, in bytes, of which all files are read whole. Reading such a model takes half a second."""
_NUM_BLOCKS, _BLOCK_BYTES = 256, 1 << 16
_SNAPSHOTS = "snapshots"
"""The folder of Hugging Face's cache that has a folder for each commit."""


def model_digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that a model is loaded from, by name; for a hub model, its commit.

    If a model has more than 512 MiB, the digest of a file above 16 MiB covers only its size, the names, types and
    shapes of its tensors, and 256 evenly spread blocks of 64 KiB, 16 MiB in total. Training changes every tensor, so
    training is noticed. A change of a few values between the blocks is not noticed.
    """
    if folder.parent.name == _SNAPSHOTS:
        return {"revision": folder.name}
    files = sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()})
    is_large = sum(path.stat().st_size for path in files) > _WHOLE_BYTES
    return {path.name: _digest(path, is_sampled=is_large) for path in files}


def _digest(path: Path, *, is_sampled: bool) -> str:
    with path.open("rb") as file:
        if not is_sampled or path.stat().st_size <= _NUM_BLOCKS * _BLOCK_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for part in _samples(file, path.stat().st_size, has_header=path.suffix == ".safetensors"):
            digest.update(part)
        return f"sampled-{digest.hexdigest()}"


def _samples(file: BinaryIO, size: int, *, has_header: bool) -> Iterator[bytes]:
    yield size.to_bytes(8, "little")
    if has_header:
        # The header is its length in eight bytes, then JSON (the format's specification).
        length = int.from_bytes(file.read(8), "little")
        yield file.read(min(length, size))
    for index in range(_NUM_BLOCKS):
        file.seek(index * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
        yield file.read(_BLOCK_BYTES)
