"""The universal form of a checkpoint, with each parameter whole, which any number of ranks can load.

`python -m services.learner.storage.universal_checkpoint SOURCE TARGET PARENT_PID` converts DeepSpeed's files in the
folder SOURCE, by DeepSpeed's own converter, into a subfolder of TARGET. The conversion runs as a separate process,
which takes no GPU memory and ends with the learner. This process has in memory only one rank's shard of the optimizer,
or one whole parameter.
"""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import discard_folder, start_folder, storage_error, storage_errors
from shoal.error_reasons import ErrorReason
from shoal.errors import Internal, ResourceExhausted
from shoal.quantities import format_bytes
from shoal.worker.parent import die_with_parent

_NAME = "universal"
_TAG = "state"
_COPIES = 3
"""The most disk space of a conversion per size of its source: for pieces, whole parameters, and a shard again."""


@contextmanager
def universal_form(checkpoint: Path, state: Path, process_group: ProcessGroup) -> Iterator[Path]:
    """Returns a context that gives a folder with the universal form of the files in `state`. Use it on all ranks.

    The folder is in `checkpoint`, and exists only within the context. The leftovers of an earlier process
    are deleted. Raises, on every rank alike, `ResourceExhausted` when the disk has no room for the universal form, and
    `Internal` when DeepSpeed cannot convert the state.
    """
    folder = checkpoint / _NAME
    try:
        with process_group.raising_on_all(), storage_errors(folder):
            if process_group.rank == 0:
                _convert(state / _TAG, start_folder(folder), folder)
        yield folder.with_name(f"{_NAME}.partial")
        # No rank reads any more: the files of the others may be deleted.
        process_group.raise_on_all(None)
    finally:
        if process_group.rank == 0:
            discard_universal_form(checkpoint)


def discard_universal_form(checkpoint: Path) -> None:
    """Deletes the universal form that a killed process left in a checkpoint."""
    discard_folder(checkpoint / _NAME)


def _convert(source: Path, target: Path, folder: Path) -> None:
    num_bytes = _COPIES * sum(path.stat().st_size for path in source.iterdir())
    free = shutil.disk_usage(target).free
    if free < num_bytes:
        raise ResourceExhausted(
            f"{source} needs {format_bytes(num_bytes)} on its disk in order to be loaded on another number of ranks, "
            f"but only {format_bytes(free)} are free: free some space, or start the learner with the number of ranks "
            "that wrote it",
            reason=ErrorReason.DISK_FULL,
            metadata={"folder": str(folder)},
        )
    module = "services.learner.storage.universal_checkpoint"
    done = subprocess.run(
        [sys.executable, "-m", module, str(source), str(target), str(os.getpid())],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        if shutil.disk_usage(target).free < 1 << 20:
            raise storage_error(OSError(), folder)
        why = done.stderr.strip().splitlines()[-1:] or [f"the conversion ended with exit code {done.returncode}"]
        raise Internal(
            f"{source} cannot be converted for another number of ranks: {why[0]}; start the learner with the number "
            "of ranks that wrote it",
            reason=ErrorReason.NOT_CONVERTED,
        )


def main() -> None:
    """Converts the files in the folder that the first argument names."""
    source, target, parent_pid = sys.argv[1:]
    die_with_parent(parent_pid=int(parent_pid))
    from deepspeed.checkpoint import ds_to_universal

    # DeepSpeed treats paths as file patterns. A relative path has no characters of a pattern.
    source = os.path.relpath(source, target)
    os.chdir(target)
    ds_to_universal.main(
        Namespace(
            input_folder=source,
            output_folder=_TAG,
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,  # Up to stage 2 DeepSpeed's checkpoints lack state that its converter requires.
        )
    )


if __name__ == "__main__":
    main()
