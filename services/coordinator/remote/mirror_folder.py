"""The layout of a mirror, which shows which checkpoints of a run are whole.

    <url>/<run>/checkpoints/step-00000012.0.96/mirror.json     paths, sizes and digests of all files; written last
    <url>/<run>/checkpoints/step-00000012.0.96/learner/...
    <url>/<run>/segments/text-00000001.segment.0-1310720.1f0c7e3a90d2      a part of a file that checkpoints share

A folder is named by the checkpoint, its attempt, and its next group, so no folder is ever rewritten. A folder without
`mirror.json` is not a checkpoint; a checkpoint is taken only if all its files match their digests.
"""

import hashlib
import io
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias

from services.coordinator.remote.file_systems import file_system, is_local
from services.coordinator.remote.parts import Part, chunks, divide, parts_there
from shoal.errors import DataLoss
from shoal.parsing import parse_json

_COMMIT = "mirror.json"
_NAME = re.compile(r"step-[0-9]{8,}")
_AT_ONCE = 4
"""Maximum number of files that are copied at the same time."""

Progress = Callable[[int], None]
"""Called with the number of bytes that have been copied since the last call, on any thread."""


Age: TypeAlias = tuple[int, int, int]
"""The order of checkpoints: attempt, policy version, and the number of the next group."""


@dataclass(frozen=True)
class MirroredFile:
    """A file of a checkpoint."""

    path: str
    """The path in the run's folder."""
    num_bytes: int
    """The number of bytes from the beginning of the file that belong to the checkpoint."""
    sha256: str
    is_shared: bool = False
    """Whether other checkpoints may also have the file, or its beginning."""
    parts: tuple[Part, ...] = ()
    """The parts of a shared file, in order."""


@dataclass(frozen=True, order=True)
class MirroredCheckpoint:
    """A checkpoint with all its files. Checkpoints are ordered by age: by attempt, then by step."""

    attempt: int
    policy_version: int
    next_order_number: int
    checkpoint_id: str
    files: tuple[MirroredFile, ...]

    @property
    def age(self) -> Age:
        return self.attempt, self.policy_version, self.next_order_number

    @property
    def folder(self) -> str:
        """The checkpoint's folder in the mirror."""
        return f"checkpoints/{self.checkpoint_id}.{self.attempt}.{self.next_order_number}"

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def stored(self, file: MirroredFile) -> list[str]:
        """Returns the paths of a file, or of its parts, within the run's folder in the mirror."""
        if file.is_shared:
            return [part.stored(file.path) for part in file.parts]
        parts = PurePosixPath(file.path).parts
        inside = parts[2:] if parts[0] == "checkpoints" else parts
        return ["/".join((self.folder, *inside))]


@dataclass(frozen=True)
class RunPlaces:
    """The places of a run's files. The learner's files may be on separate storage."""

    run_folder: Path
    learner_folder: Path
    """The run's folder in the learner's data folder; the folder of the run itself if the data folder is shared."""

    def of(self, path: str) -> Path:
        """Returns the place of a file. Raises `DataLoss` for a path that leads out of the run's folders."""
        parts = PurePosixPath(path).parts
        if ".." in parts or parts[:1] == ("/",):
            raise DataLoss(f"the checkpoint names the file {path}, which lies outside the run's folder")
        is_learners = len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "learner"
        return (self.learner_folder if is_learners else self.run_folder) / path


class MirrorFolder:
    """The folder of one run in a mirror. Its methods block, and raise errors of the file system."""

    def __init__(self, url: str, run_id: str) -> None:
        """Raises the errors of `file_system`."""
        self._files, root = file_system(url, "checkpoint.mirror")
        self._root = f"{root}/{run_id}"

    def whole(self) -> list[MirroredCheckpoint]:
        """Returns the checkpoints that are whole according to their `mirror.json`, oldest first."""
        found = (self._read(path) for path in self._find() if path.endswith(f"/{_COMMIT}"))
        return sorted(checkpoint for checkpoint in found if checkpoint is not None)

    def put(
        self, places: RunPlaces, checkpoint: MirroredCheckpoint, contents: Mapping[str, bytes], progress: Progress
    ) -> None:
        """Copies a checkpoint to the mirror, with `mirror.json` last.

        Existing parts of shared files are kept. `contents` has, by path, the contents of files that change in the run's
        folder meanwhile. Raises `DataLoss` if a file is missing or differs from its digest.
        """
        there, known = self._find(), [file for each in self.whole() for file in each.files if file.is_shared]
        copied: dict[str, MirroredFile] = {}

        def copy(file: MirroredFile) -> None:
            path = places.of(file.path)
            if file.is_shared:
                copied[file.path] = self._put_shared(file, path, contents.get(file.path), known, there)
                progress(file.num_bytes)
                return
            copied[file.path] = file
            with _source(path, contents.get(file.path)) as source, self._open(checkpoint.stored(file)[0]) as target:
                _copy(source, target, file.num_bytes, file.sha256, str(path), lambda chunk: progress(len(chunk)))

        _at_once(copy, checkpoint.files)
        whole = replace(checkpoint, files=tuple(copied[file.path] for file in checkpoint.files))
        with self._open(f"{checkpoint.folder}/{_COMMIT}") as target:
            target.write(json.dumps(asdict(whole), indent=1).encode())

    def _put_shared(
        self,
        file: MirroredFile,
        path: Path,
        content: bytes | None,
        known: Iterable[MirroredFile],
        there: Mapping[str, int],
    ) -> MirroredFile:
        """Copies the parts of a file that the mirror lacks; returns the file with its parts."""
        alike = [each for each in known if each.path == file.path]
        candidates = [(each, parts_there(file.path, each.parts, file.num_bytes, there)) for each in alike]
        for each, kept in candidates:
            if (each.num_bytes, each.sha256) == (file.num_bytes, file.sha256) and len(kept) == len(each.parts):
                return each
        longest = max((kept for _, kept in candidates), key=lambda kept: kept[-1].end if kept else 0, default=[])
        with _source(path, content) as source:
            parts, sha256 = divide(source, file.num_bytes, longest)
            if sha256 != file.sha256:
                raise _differs(str(path), file.sha256)
            for part in parts:
                if there.get(part.stored(file.path)) != part.num_bytes:
                    source.seek(part.start)
                    self._put_part(part, part.stored(file.path), source, str(path))
        return replace(file, parts=tuple(parts))

    def _put_part(self, part: Part, stored: str, source: BinaryIO, name: str) -> None:
        try:
            with self._open(stored) as target:
                _copy(source, target, part.num_bytes, part.sha256, name)
        except DataLoss:  # The content differs from the digest in its name.
            self._files.rm_file(f"{self._root}/{stored}")
            raise

    def get(self, checkpoint: MirroredCheckpoint, places: RunPlaces) -> None:
        """Copies a checkpoint to the places of a run. Raises `DataLoss` if a file is missing or differs."""
        _at_once(lambda file: self._get(checkpoint, file, places.of(file.path)), checkpoint.files)

    def get_shared(self, file: MirroredFile, target: Path) -> None:
        """Copies a file that checkpoints share. Raises `DataLoss` if the file is missing or differs."""
        for checkpoint in self.whole():
            for each in checkpoint.files:
                if (each.path, each.num_bytes, each.sha256) == (file.path, file.num_bytes, file.sha256):
                    return self._get(checkpoint, each, target)
        raise DataLoss(f"no checkpoint in {self._root} has {file.path} with {file.num_bytes} bytes and the same digest")

    def _get(self, checkpoint: MirroredCheckpoint, file: MirroredFile, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        sizes = [(part.num_bytes, part.sha256) for part in file.parts] or [(file.num_bytes, file.sha256)]
        whole = hashlib.sha256()
        with target.open("wb") as out:
            for stored, (num_bytes, sha256) in zip(checkpoint.stored(file), sizes, strict=False):
                name = f"{self._root}/{stored}"
                try:
                    source = self._files.open(name, "rb")
                except FileNotFoundError:
                    raise DataLoss(f"{name} is missing") from None
                with source:
                    _copy(source, out, num_bytes, sha256, name, whole.update)
        if whole.hexdigest() != file.sha256:
            raise _differs(f"{self._root}/{file.path}", file.sha256)

    def keep_only(self, kept: Collection[MirroredCheckpoint]) -> None:
        """Deletes checkpoints that are not in `kept` or are not whole, and files that no checkpoint in `kept` has.

        Deletes each `mirror.json` first: after an interruption the remaining files are not a checkpoint.
        """
        needed = {stored for each in kept for file in each.files for stored in each.stored(file)}
        needed |= {f"{each.folder}/{_COMMIT}" for each in kept}
        others = [path for path in self._find() if path not in needed]
        for path in sorted(others, key=lambda path: not path.endswith(f"/{_COMMIT}")):
            self._files.rm_file(f"{self._root}/{path}")
        if is_local(self._files):
            _remove_empty_folders(Path(self._root))

    def _read(self, path: str) -> MirroredCheckpoint | None:
        try:
            values = parse_json(self._files.cat_file(f"{self._root}/{path}"))
            for file in values["files"]:
                file["parts"] = tuple(Part(**part) for part in file["parts"])
            values["files"] = tuple(MirroredFile(**file) for file in values["files"])
            checkpoint = MirroredCheckpoint(**values)
            # The name becomes a folder here, which is replaced, so it must not lead outside.
            is_named = _NAME.fullmatch(checkpoint.checkpoint_id) and path == f"{checkpoint.folder}/{_COMMIT}"
            return checkpoint if is_named and all(isinstance(number, int) for number in checkpoint.age) else None
        except (ValueError, KeyError, TypeError):
            return None  # The file was cut off during writing, or has another version.

    def _find(self) -> dict[str, int]:
        """Returns the sizes of the files in the run's folder of the mirror, by their relative paths."""
        try:
            found: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
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
            f"{path} does not exist; if the learner has separate storage, start the coordinator with "
            "--learner-data-dir FOLDER"
        ) from None


def _at_once(copy: Callable[[MirroredFile], None], files: Collection[MirroredFile]) -> None:
    """Copies several files at the same time. After the first error no further file begins, and the error is raised."""
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


def _copy(
    source: BinaryIO, target: BinaryIO, num_bytes: int, sha256: str, name: str, *observers: Callable[[bytes], object]
) -> None:
    """Copies bytes in chunks, and passes each chunk to `observers`. Raises `DataLoss` if the digest differs."""
    digest = hashlib.sha256()
    for chunk in chunks(source, num_bytes):
        for observe in (digest.update, target.write, *observers):
            observe(chunk)
    if digest.hexdigest() != sha256:
        raise _differs(name, sha256)


def _differs(name: str, sha256: str) -> DataLoss:
    return DataLoss(f"{name} differs from what was written: its SHA-256 is not {sha256}")


def _remove_empty_folders(root: Path) -> None:
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
