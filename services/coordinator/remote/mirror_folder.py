"""The checkpoints of a run at another place: how they lie there, and which of them are whole.

    <url>/<run>/checkpoints/step-00000012.0.96/mirror.json     paths, sizes and digests of all files; the last
    <url>/<run>/checkpoints/step-00000012.0.96/learner/...
    <url>/<run>/segments/text-00000001.segment.134218240       up to that length, once for all checkpoints that name it

A folder is named by the checkpoint, its attempt, and its next group, so none is ever written again. One without
`mirror.json` is none; a checkpoint is taken only if all its files have their digests.
"""

import hashlib
import io
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias

from services.coordinator.remote.file_systems import file_system, is_local
from shoal.errors import DataLoss
from shoal.parsing import parse_json

_COMMIT = "mirror.json"
_CHUNK_BYTES = 8 << 20
_AT_ONCE = 4
"""Files that are copied at the same time."""

Progress = Callable[[int], None]
"""Called with the number of bytes that have been copied since the last call, on any thread."""


Age: TypeAlias = tuple[int, int, int]
"""By which checkpoints are ordered: attempt, policy version, and the number of the next group."""


@dataclass(frozen=True)
class MirroredFile:
    """A file of a checkpoint."""

    path: str
    """In the run's folder."""
    num_bytes: int
    """What counts of the file, from its beginning."""
    sha256: str
    is_shared: bool = False
    """Whether other checkpoints may have it as well."""


@dataclass(frozen=True, order=True)
class MirroredCheckpoint:
    """A checkpoint with all its files. The order is that of age: by attempt, then by step."""

    attempt: int
    policy_version: int
    next_order_number: int
    checkpoint_id: str
    files: tuple[MirroredFile, ...]

    @property
    def age(self) -> Age:
        """By which checkpoints are ordered."""
        return self.attempt, self.policy_version, self.next_order_number

    @property
    def folder(self) -> str:
        """Its folder in the mirror."""
        return f"checkpoints/{self.checkpoint_id}.{self.attempt}.{self.next_order_number}"

    @property
    def num_bytes(self) -> int:
        """The size of all its files."""
        return sum(file.num_bytes for file in self.files)

    def stored(self, file: MirroredFile) -> str:
        """Returns the place of a file in the run's part of the mirror."""
        if file.is_shared:
            return stored_shared(file)
        parts = PurePosixPath(file.path).parts
        inside = parts[2:] if parts[0] == "checkpoints" else parts
        return "/".join((self.folder, *inside))


def stored_shared(file: MirroredFile) -> str:
    """Returns the place of a file that checkpoints share in the run's part of the mirror."""
    return f"{file.path}.{file.num_bytes}"


@dataclass(frozen=True)
class RunPlaces:
    """Where the files of a run are: those that the learner writes may be on storage of their own."""

    run_folder: Path
    learner_folder: Path
    """The run's folder in the learner's data folder; the same one where they share it."""

    def of(self, path: str) -> Path:
        """Returns the place of a file. Raises `DataLoss` for one outside of both."""
        parts = PurePosixPath(path).parts
        if ".." in parts or parts[:1] == ("/",):
            raise DataLoss(f"{path} lies outside the run's folder")
        is_learners = len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "learner"
        return (self.learner_folder if is_learners else self.run_folder) / path


class MirrorFolder:
    """The part of a mirror that has one run. Its methods block, and raise what the file system raises."""

    def __init__(self, url: str, run_id: str, name: str) -> None:
        """`name` is the option or field that has the URL. Raises as `file_system` does."""
        self._files, root = file_system(url, name)
        self._root = f"{root}/{run_id}"

    def whole(self) -> list[MirroredCheckpoint]:
        """Returns the checkpoints that are whole, as far as their `mirror.json` tells, oldest first."""
        found = (self._read(path) for path in self._find("checkpoints") if path.endswith(f"/{_COMMIT}"))
        return sorted(checkpoint for checkpoint in found if checkpoint is not None)

    def put(
        self, places: RunPlaces, checkpoint: MirroredCheckpoint, contents: Mapping[str, bytes], progress: Progress
    ) -> None:
        """Copies a checkpoint, `mirror.json` last; what is there already of shared files stays.

        `contents` has the files that change in the run's folder meanwhile, by path. Raises `DataLoss` when a file is
        missing or differs from its digest.
        """
        there = self._find("segments")

        def copy(file: MirroredFile) -> None:
            stored = checkpoint.stored(file)
            if there.get(stored) == file.num_bytes:
                progress(file.num_bytes)
                return
            path = places.of(file.path)
            with _source(path, contents.get(file.path)) as source, self._open(stored) as target:
                _copy(source, target, file, str(path), progress)

        _at_once(copy, checkpoint.files)
        with self._open(f"{checkpoint.folder}/{_COMMIT}") as target:
            target.write(json.dumps(asdict(checkpoint), indent=1).encode())

    def get(self, checkpoint: MirroredCheckpoint, places: RunPlaces, progress: Progress) -> None:
        """Copies a checkpoint to the places of a run. Raises `DataLoss` when a file is missing or differs."""
        _at_once(
            lambda file: self._get(checkpoint.stored(file), file, places.of(file.path), progress), checkpoint.files
        )

    def get_shared(self, file: MirroredFile, target: Path) -> None:
        """Copies a file that checkpoints share. Raises `DataLoss` when it is missing or differs."""
        self._get(stored_shared(file), file, target, lambda _: None)

    def _get(self, path: str, file: MirroredFile, target: Path, progress: Progress) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        stored = f"{self._root}/{path}"
        try:
            source = self._files.open(stored, "rb")
        except FileNotFoundError:
            raise DataLoss(f"{stored} is missing") from None
        with source, target.open("wb") as out:
            _copy(source, out, file, stored, progress)

    def keep_only(self, kept: Collection[MirroredCheckpoint]) -> None:
        """Deletes all other checkpoints, those that are not whole, and the files that none of `kept` has.

        Deletes each `mirror.json` first: if this is interrupted, the rest is no checkpoint.
        """
        needed = {each.stored(file) for each in kept for file in each.files}
        needed |= {f"{each.folder}/{_COMMIT}" for each in kept}
        others = [path for path in (*self._find("checkpoints"), *self._find("segments")) if path not in needed]
        for path in sorted(others, key=lambda path: not path.endswith(f"/{_COMMIT}")):
            self._files.rm_file(f"{self._root}/{path}")
        if is_local(self._files):
            _remove_empty_folders(Path(self._root))

    def _read(self, path: str) -> MirroredCheckpoint | None:
        try:
            values = parse_json(self._files.cat_file(f"{self._root}/{path}"))
            values["files"] = tuple(MirroredFile(**file) for file in values["files"])
            return MirroredCheckpoint(**values)
        except (ValueError, KeyError, TypeError):
            return None  # Cut off while it was written, or of another version.

    def _find(self, part: str) -> dict[str, int]:
        """Returns the sizes of the files below a folder, by their paths in the run's part of the mirror."""
        try:
            found: dict[str, dict[str, Any]] = self._files.find(f"{self._root}/{part}", detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._root) + 1
        return {path[start:]: int(info["size"]) for path, info in found.items()}

    def _open(self, path: str) -> Any:
        full = f"{self._root}/{path}"
        if is_local(self._files):
            self._files.makedirs(full.rpartition("/")[0], exist_ok=True)
        return self._files.open(full, "wb")


def _source(path: Path, content: bytes | None) -> BinaryIO:
    if content is not None:
        return io.BytesIO(content)
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataLoss(
            f"{path} does not exist; if the learner has storage of its own, start the coordinator with "
            "--learner-data-dir FOLDER"
        ) from None


def _at_once(copy: Callable[[MirroredFile], None], files: Collection[MirroredFile]) -> None:
    """Copies files, some at the same time. After the first error no further one begins, and it is raised."""
    waiting, errors = iter(tuple(files)), list[Exception]()

    def work() -> None:
        try:
            while not errors and (file := next(waiting, None)) is not None:
                copy(file)
        except Exception as error:
            errors.append(error)

    # Daemons: the interpreter does not wait for a file system that hangs.
    threads = [threading.Thread(target=work, name=f"mirror-{index}", daemon=True) for index in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _copy(source: BinaryIO, target: BinaryIO, file: MirroredFile, name: str, progress: Progress) -> None:
    """Copies what counts of a file. Raises `DataLoss` when that is not what its digest says."""
    digest = hashlib.sha256()
    for chunk in _chunks(source, file.num_bytes):
        digest.update(chunk)
        target.write(chunk)
        progress(len(chunk))
    if digest.hexdigest() != file.sha256:
        raise DataLoss(f"{name} differs from what was written: its SHA-256 is not {file.sha256}")


def _chunks(source: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while num_bytes and (chunk := source.read(min(num_bytes, _CHUNK_BYTES))):
        num_bytes -= len(chunk)
        yield chunk


def _remove_empty_folders(root: Path) -> None:
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
